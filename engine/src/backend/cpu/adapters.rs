//! Adapters on a CPU.

use std::ops::Range;
use std::sync::Arc;

use cpu::CpuLowRank;

use super::Inputs;
use crate::adapter::Site;
use crate::load::adapter::LowRank;

/// An adapter's products, one for each site of the model that it changes.
pub struct CpuAdapter(Vec<Option<CpuLowRank>>);

impl CpuAdapter {
    /// Takes the products for all sites.
    pub fn new(products: Vec<Option<LowRank>>) -> Self {
        CpuAdapter(products.into_iter().map(|product| product.map(CpuLowRank::new)).collect())
    }

    /// The product for a site.
    fn product(&self, site: Option<Site>) -> Option<&CpuLowRank> {
        self.0.get(site?.0)?.as_ref()
    }
}

impl Inputs {
    /// Sets the adapter of each sequence. Neighbours with the same adapter are changed together.
    pub(super) fn set_adapters(&mut self, spans: &[Option<Arc<CpuAdapter>>]) {
        self.adapted.clear();
        for (span, adapter) in self.batch.spans.iter().zip(spans) {
            let Some(adapter) = adapter else { continue };
            match self.adapted.last_mut() {
                Some((rows, last)) if rows.end == span.start && Arc::ptr_eq(last, adapter) => rows.end += span.len,
                _ => self.adapted.push((span.start..span.start + span.len, Arc::clone(adapter))),
            }
        }
    }

    /// Whether an adapter of the step changes one of these sites.
    pub(super) fn is_adapted(&self, sites: &[Option<Site>]) -> bool {
        self.adapted.iter().any(|(_, adapter)| sites.iter().any(|site| adapter.product(*site).is_some()))
    }

    /// The products for a site, with the rows that they change.
    pub(super) fn products(&self, site: Option<Site>) -> Vec<(Range<usize>, &CpuLowRank)> {
        self.adapted.iter().filter_map(|(rows, adapter)| Some((rows.clone(), adapter.product(site)?))).collect()
    }
}
