//! The causal convolution of each channel, and the inputs that the next step needs.

use checkpoint::config::{Activation, Recurrent, RecurrentKind};

use super::states::SpanStates;
use super::{Cpu, CpuRecurrent, CpuTensor, EPS};
use crate::math::activate;
use crate::rows::scale_to_length;

impl Cpu {
    /// Returns the convolution of `x`, with SiLU unless the layer has no heads. Normalises the queries and keys of a delta
    /// net.
    pub(super) fn convolve(&self, x: &CpuTensor, weight: &CpuRecurrent, states: &[SpanStates<'_>]) -> CpuTensor {
        let Recurrent { kind, kernel, key_dim, .. } = weight.shape;
        let (channels, keys, before) = (x.cols(), weight.shape.key_width(), kernel - 1);
        let mut out = self.pool.tensor(x.rows(), channels);
        let mut sequence_of = vec![0; x.rows()];
        for (i, SpanStates { span, .. }) in states.iter().enumerate() {
            sequence_of[span.start..span.start + span.len].fill(i);
        }
        let inputs = x.as_slice();
        self.each_row(
            out.as_mut_slice(),
            channels,
            #[inline(always)]
            |t, row| {
                let SpanStates { span, stops } = &states[sequence_of[t]];
                let position = span.context - span.len + t - span.start;
                match &weight.bias {
                    Some(bias) => row.copy_from_slice(bias),
                    None => row.fill(0.0),
                }
                for (tap, factors) in weight.kernel.chunks_exact(channels).enumerate() {
                    // The input of the position that is `back` before.
                    let back = before - tap;
                    let input = if back <= t - span.start {
                        &inputs[(t - back) * channels..][..channels]
                    } else if back <= position {
                        &stops[0].1[(position - back) % before * channels..][..channels]
                    } else {
                        continue;
                    };
                    row.iter_mut().zip(input).zip(factors).for_each(|((y, x), factor)| *y += x * factor);
                }
                if kind != RecurrentKind::Convolution {
                    activate(row, Activation::Silu);
                }
                if kind == RecurrentKind::DeltaNet {
                    let (queries, keys) = row[..2 * keys].split_at_mut(keys);
                    queries
                        .chunks_exact_mut(key_dim)
                        .for_each(|x| scale_to_length(x, (key_dim as f32).powf(-0.5), EPS));
                    keys.chunks_exact_mut(key_dim).for_each(|x| scale_to_length(x, 1.0, EPS));
                }
            },
        );
        out
    }

    /// Stores the last inputs of the convolution in each state, which have `conv` elements. Returns the rest of the states.
    pub(super) fn store_inputs<'a>(
        &self,
        x: &CpuTensor,
        weight: &CpuRecurrent,
        states: Vec<SpanStates<'a>>,
        conv: usize,
    ) -> Vec<SpanStates<'a>> {
        let (channels, before, inputs) = (x.cols(), weight.shape.kernel - 1, x.as_slice());
        let mut parts = Vec::new();
        let mut matrices = Vec::new();
        for SpanStates { span, stops } in states {
            let (mut own, mut rest) = (Vec::new(), Vec::new());
            for (end, state) in stops {
                let (inputs, matrix) = state.split_at_mut(conv);
                own.push((end, inputs));
                rest.push((end, matrix));
            }
            parts.push(SpanStates { span, stops: own });
            matrices.push(SpanStates { span, stops: rest });
        }
        self.threads.each(parts.iter_mut(), |SpanStates { span, stops }| {
            let first = span.context - span.len;
            let mut from = 0;
            for i in 0..stops.len() {
                let (done, left) = stops.split_at_mut(i);
                let (end, state) = &mut left[0];
                if let Some((_, earlier)) = done.last() {
                    state.copy_from_slice(earlier);
                }
                for token in from.max(end.saturating_sub(before))..*end {
                    let row = (first + token) % before;
                    state[row * channels..][..channels]
                        .copy_from_slice(&inputs[(span.start + token) * channels..][..channels]);
                }
                from = *end;
            }
        });
        matrices
    }
}
