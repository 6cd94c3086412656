//! Sampling tokens from logits: one launch and one download per step, whatever the rows' settings.

use std::cell::RefCell;

use cuda_std::launch::{DevicePtrMut, LaunchShape};
use kernels::floor::Floor;
use kernels::sampling::{NO_TOKEN, THREADS, floor_bytes, sample};
use launch::{DeviceBuffer, PinnedBuffer};

use crate::backend::cuda::CudaBackend;
use crate::backend::cuda::device::CudaDevice;
use crate::backend::cuda::memory::tensor::CudaTensor;
use crate::backend::cuda::step::inputs::StepInputs;
use crate::error::{Error, Result};
use crate::sampling::{SampleRow, Sampled};

/// Initial size of the result buffers in words.
const INITIAL_WORDS: usize = 16 << 10;

/// Buffers for results on the device and in pinned host memory. Results are tokens, their logprobs, the most likely
/// tokens, and the logprobs of those, one array after the other.
#[derive(Default)]
pub struct Results(RefCell<Option<(DeviceBuffer<u32>, PinnedBuffer<u32>)>>);

impl Results {
    /// Makes the buffers at least `words` words long.
    fn reserve(&self, device: &CudaDevice, words: usize) -> launch::Result<()> {
        let mut buffers = self.0.borrow_mut();
        if buffers.as_ref().is_some_and(|(results, _)| results.len() >= words) {
            return Ok(());
        }
        let capacity = words.next_power_of_two().max(INITIAL_WORDS);
        // Cleared because rows that cannot be sampled do not write their logprobs.
        let results = DeviceBuffer::zeroed(&device.stream, capacity)?.named("sampled");
        *buffers = Some((results, PinnedBuffer::zeroed(&device.context, capacity)?));
        Ok(())
    }

    /// The device address of the results.
    fn address(&self) -> u64 {
        self.0.borrow().as_ref().map_or(0, |(results, _)| results.address())
    }

    /// Waits for the stream and returns the first words of the results.
    fn fetch(&self, device: &CudaDevice, words: usize) -> launch::Result<Vec<u32>> {
        let buffers = self.0.borrow();
        let Some((results, copy)) = buffers.as_ref() else { return Ok(Vec::new()) };
        // SAFETY: both buffers live as long as the backend, and the copy is read only after the stream is synchronised.
        unsafe { device.stream.download_async(results.slice(0..words), copy) }?;
        device.stream.synchronize()?;
        Ok(copy[..words].to_vec())
    }
}

/// Number of words in the results of `rows` rows with `top` most likely tokens in total.
fn words(rows: usize, top: usize) -> usize {
    2 * (rows + top)
}

impl CudaBackend {
    /// Reserves buffers for the results of a step.
    pub(in crate::backend::cuda) fn reserve_results(&self, rows: usize, top: usize) {
        self.queue.run(|device| self.results.reserve(device, words(rows, top)));
    }

    /// Chooses a token for each row of `logits` and waits for all queued operations.
    pub(in crate::backend::cuda) fn sample(
        &self,
        logits: &CudaTensor,
        inputs: &StepInputs,
        rows: &[SampleRow<'_>],
    ) -> Result<Vec<Sampled>> {
        let (count, top) = (rows.len(), inputs.top as usize);
        let words = words(count, top);
        let results = DevicePtrMut::<u32>::from_address(self.results.address());
        let call = sample {
            logits: logits.ptr(),
            stride: logits.stride,
            vocab: logits.cols,
            requests: inputs.requests().cast_const(),
            adjustments: inputs.adjustments(),
            masks: inputs.masks().cast_const(),
            tokens: results,
            logprobs: results.offset(count).cast(),
            top_tokens: results.offset(2 * count),
            top_logprobs: results.offset(2 * count + top).cast(),
        };
        let floor = || Floor { bytes: floor_bytes(count as u64, logits.cols.into()), flops: 0 };
        // SAFETY: the requests were made for these rows, and their tokens are in the vocabulary.
        unsafe { self.queue.launch(LaunchShape::linear(count as u32, THREADS), call, floor) };
        let mut found = Vec::new();
        self.queue.run(|device| {
            found = self.results.fetch(device, words)?;
            Ok(())
        });
        self.queue.check()?;
        if found.is_empty() {
            return Ok(Vec::new()); // a rehearsal
        }
        let (tokens, rest) = found.split_at(count);
        let (logprobs, rest) = rest.split_at(count);
        let (top_tokens, top_logprobs) = rest.split_at(top);
        if tokens.contains(&NO_TOKEN) {
            return Err(Error::NotANumber);
        }
        // A mask may allow fewer tokens than requested.
        let exists = |top: &(u32, f32)| top.0 != NO_TOKEN;
        let mut likeliest = top_tokens.iter().zip(top_logprobs).map(|(&token, &bits)| (token, f32::from_bits(bits)));
        let sampled = rows.iter().zip(tokens.iter().zip(logprobs)).map(|(row, (&token, &bits))| Sampled {
            token,
            logprob: f32::from_bits(bits),
            top: likeliest.by_ref().take(row.top.min(logits.cols as usize)).filter(exists).collect(),
        });
        Ok(sampled.collect())
    }
}
