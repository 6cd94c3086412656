//! A handle to an adapter that requests can use.

use std::fmt;
use std::sync::Arc;

use crate::kv::AdapterTag;
use crate::load::adapter::{Adapter, AdapterDigest};

/// An adapter that requests can use. Clones are handles to the same adapter, which lives until the last is dropped. So a
/// request keeps its adapter even if another one is loaded under the same name. Handles are equal if the adapters have
/// the same contents.
#[derive(Clone)]
pub struct AdapterHandle(Arc<Shared>);

struct Shared {
    tag: Arc<AdapterTag>,
    adapter: Adapter,
    pages: usize,
}

impl AdapterHandle {
    /// A handle to an adapter with this name. On the device it takes as much memory as `pages` pages of the KV cache.
    pub fn new(name: &str, adapter: Adapter, pages: usize) -> Self {
        let tag = Arc::new(AdapterTag { digest: adapter.digest, name: name.into() });
        AdapterHandle(Arc::new(Shared { tag, adapter, pages }))
    }

    /// The name that it was loaded under.
    pub fn name(&self) -> &str {
        &self.0.tag.name
    }

    /// Identifies its contents.
    pub fn digest(&self) -> &AdapterDigest {
        &self.0.tag.digest
    }

    /// The highest rank of its products.
    pub fn rank(&self) -> usize {
        self.0.adapter.rank()
    }

    /// Its name and digest.
    pub(crate) fn tag(&self) -> &Arc<AdapterTag> {
        &self.0.tag
    }

    /// The memory that it takes on the device, in pages of the KV cache.
    pub fn pages(&self) -> usize {
        self.0.pages
    }

    /// Its products.
    pub(crate) fn adapter(&self) -> &Adapter {
        &self.0.adapter
    }
}

impl PartialEq for AdapterHandle {
    fn eq(&self, other: &Self) -> bool {
        self.digest() == other.digest()
    }
}

impl Eq for AdapterHandle {}

impl fmt::Debug for AdapterHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdapterHandle({:?}, {:.8})", self.name(), self.digest().to_string())
    }
}
