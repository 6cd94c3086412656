//! Which beams of a search survive: for each step, how many of the next beams go on from each beam.

/// The searches whose survivals are replayed, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Lineages(Vec<Vec<Vec<u8>>>);

impl Lineages {
    /// From searches: for each step after the first, the number of children of each beam. Searches without steps are left out.
    pub fn new(searches: Vec<Vec<Vec<u8>>>) -> Self {
        Lineages(searches.into_iter().filter(|search| !search.is_empty()).collect())
    }

    /// The children of each beam at a step of a search, of which `width` beams go on. A search that is longer than the one
    /// that was recorded goes through that again; without any, each beam has one child.
    pub fn children(&self, search: u64, step: usize, width: usize) -> Vec<usize> {
        let recorded = self.0.get(search as usize % self.0.len().max(1)).map(|search| &search[step % search.len()]);
        match recorded {
            Some(children) => children.iter().map(|&n| usize::from(n)).collect(),
            None => vec![1; width],
        }
    }
}
