//! Decode steps as CUDA graphs. A step is recorded once for each bucket, with and without drafts, and replayed with
//! other inputs at the cost of one launch.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use launch::Graph;

use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::memory::tensor::CudaTensor;
use crate::backend::cuda::step::inputs::{BUCKETS, StepInputs, bucket};
use crate::error::Error;

/// Recorded steps by their bucket and whether they have drafts.
#[derive(Default)]
pub struct Recordings(RefCell<BTreeMap<(u32, bool), Recording>>);

/// A recorded step, from the embedding to the logits.
struct Recording {
    graph: Graph,
    /// The offset of the logits in the arena.
    begin: usize,
    rows: u32,
    cols: u32,
    stride: u32,
}

impl Recordings {
    /// Drops all recordings, because an address that they use is no longer valid.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// The number of recordings.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

/// Returns numbers of sequences up to `most`, one for each recording that decode steps without drafts may need.
pub fn sizes(most: usize) -> Vec<usize> {
    let Some(last) = bucket(most) else { return BUCKETS.map(|size| size as usize).to_vec() };
    BUCKETS.into_iter().take_while(|&size| size <= last).map(|size| most.min(size as usize)).collect()
}

impl CudaBackend {
    /// Waits until all workers have allocated and recorded everything for a step. After this, kernels may wait for each
    /// other.
    fn meet(&self) {
        if let Some(communicator) = self.communicator.as_ref().filter(|_| self.queue.is_live()) {
            communicator.meet();
        }
    }

    /// Computes a step, from a recording if possible.
    pub(in crate::backend::cuda) fn compute(
        &self,
        inputs: &StepInputs,
        compute: impl FnOnce() -> Option<CudaTensor>,
    ) -> Option<CudaTensor> {
        let Some(bucket) = inputs.bucket.filter(|_| self.queue.is_live()) else {
            self.meet();
            return compute();
        };
        let kind = (bucket, inputs.has_drafts);
        if !self.recordings.0.borrow().contains_key(&kind) {
            let (mut compute, mut logits, mut recorded) = (Some(compute), None, None);
            self.queue.run(|device| {
                recorded = Some(device.stream.capture(|| {
                    logits = compute.take().and_then(|compute| compute());
                    Ok(())
                })?);
                Ok(())
            });
            if let Some(compute) = compute {
                self.meet();
                return compute(); // the device has failed, which shows when its result is waited for
            }
            let (Some(graph), Some(CudaTensor { lease, rows, cols, stride, .. })) = (recorded, &logits) else {
                self.meet();
                return logits;
            };
            let recording = Recording { graph, begin: lease.begin(), rows: *rows, cols: *cols, stride: *stride };
            self.recordings.0.borrow_mut().insert(kind, recording);
            // Dropping `logits` frees their range, which is leased again below.
        }
        self.meet();
        let recordings = self.recordings.0.borrow();
        let Recording { graph, begin, rows, cols, stride } = &recordings[&kind];
        // SAFETY: all memory that the recorded launches use lives as long as the backend, except for the inputs. When
        // the inputs move, all recordings are dropped. The inputs belong to a step of this kind and are at the
        // addresses where the recording reads them.
        self.queue.run(|device| unsafe { graph.launch(&device.stream) });
        let Some(lease) = self.arena.lease_at(*begin, 4 * *rows as usize * *stride as usize) else {
            self.queue.fail(Error::Memory("the memory for the logits of a recorded step is in use".into()));
            return Some(self.floats(*rows, *cols));
        };
        Some(CudaTensor { lease: Arc::new(lease), rows: *rows, cols: *cols, stride: *stride, is_float: true })
    }
}
