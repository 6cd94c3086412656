//! Recorded beam searches: for each step, how many beams of the next step continue each beam.

/// Recorded beam searches that simulated searches replay in turn.
#[derive(Clone, Debug, Default)]
pub struct BeamRecord(Vec<Vec<Vec<u8>>>);

impl BeamRecord {
    /// Creates the record from searches: for each step after the first, the number of children of each beam. Searches
    /// without steps are dropped.
    pub fn new(searches: Vec<Vec<Vec<u8>>>) -> Self {
        BeamRecord(searches.into_iter().filter(|search| !search.is_empty()).collect())
    }

    /// Returns the number of children of each beam at a step of a search of `width` beams. A search that outlasts its
    /// recording starts the recording again. Without recordings, each beam has one child.
    pub fn children(&self, search: u64, step: usize, width: usize) -> Vec<usize> {
        let recorded = self.0.get(search as usize % self.0.len().max(1)).map(|search| &search[step % search.len()]);
        match recorded {
            Some(children) => children.iter().map(|&n| usize::from(n)).collect(),
            None => vec![1; width],
        }
    }
}
