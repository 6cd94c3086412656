//! LoRA adapters: low-rank products that some requests add to projections of the model.
//!
//! | file | contents |
//! | --- | --- |
//! | `registry` | the adapters that requests can name |
//! | `handle` | an adapter that requests can use |
//! | `change` | loading adapters to the device's slots |
//! | `sites` | the projections of a loaded model, and an adapter's part for each |
//! | `origin` | which outputs and inputs of a projection a loaded matrix has |

mod change;
mod handle;
mod origin;
mod registry;
mod sites;

pub use self::change::AdapterChange;
pub use self::handle::AdapterHandle;
pub use self::origin::Origin;
pub use self::registry::AdapterRegistry;
pub(crate) use self::registry::BaseModel;
pub use self::sites::{Site, Sites};
