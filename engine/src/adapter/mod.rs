//! LoRA adapters: low-rank products that some requests add to projections of the model.
//!
//! | file | contents |
//! | --- | --- |
//! | `origin` | which outputs and inputs of a projection a loaded matrix has |
//! | `sites` | the projections of a loaded model, and an adapter's part for each |

mod origin;
mod sites;

pub use self::origin::Origin;
pub use self::sites::{Site, Sites};
