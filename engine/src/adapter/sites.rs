//! The sites of a loaded model: the matrices that adapters can add products to.

use std::collections::BTreeMap;

use super::Origin;
use crate::error::Result;
use crate::load::adapter::{Adapter, LowRank};

/// A matrix of a loaded model, by its index in [`Sites`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site(pub usize);

/// The matrices of a worker's part of a model that adapters can add products to.
#[derive(Debug, Default)]
pub struct Sites(Vec<Origin>);

impl Sites {
    /// Adds a matrix.
    pub fn add(&mut self, origin: Origin) -> Site {
        self.0.push(origin);
        Site(self.0.len() - 1)
    }

    /// Checks that all products of an adapter fit the model.
    ///
    /// # Errors
    /// A sentence about the first product that does not.
    pub fn check(&self, adapter: &Adapter) -> Result<(), String> {
        let shapes: BTreeMap<&str, [usize; 2]> = self.0.iter().map(|site| (&*site.name, site.shape)).collect();
        for (name, LowRank { a, b, .. }) in &adapter.products {
            let Some(shape) = shapes.get(name.as_str()) else {
                return Err(format!(
                    "it changes {name}, which the model does not have or which adapters cannot change"
                ));
            };
            let given = [b.shape()[0], a.shape()[1]];
            if given != *shape {
                let ([outputs, inputs], [rows, cols]) = (*shape, given);
                return Err(format!(
                    "its product for {name} has {rows} outputs and {cols} inputs, but the model has {outputs} and {inputs}"
                ));
            }
        }
        Ok(())
    }

    /// The adapter's product for each site, or `None` if it leaves the site as it is.
    ///
    /// # Errors
    /// See [`Origin::part`].
    pub fn parts(&self, adapter: &Adapter) -> Result<Vec<Option<LowRank>>> {
        self.0
            .iter()
            .map(|site| adapter.products.get(&*site.name).map(|product| site.part(product)).transpose())
            .collect()
    }

    /// Bytes of [`Self::parts`].
    pub fn bytes(&self, adapter: &Adapter) -> usize {
        let of_site = |site: &Origin| {
            adapter.products.get(&*site.name).map_or(0, |product| {
                let [a, b] = site.elements(product.rank());
                a * product.a.dtype().size() + b * product.b.dtype().size()
            })
        };
        self.0.iter().map(of_site).sum()
    }
}
