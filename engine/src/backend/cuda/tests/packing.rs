//! Tests of packing a step's inputs.

use super::*;
use crate::backend::cuda::step::inputs::Packing;

const PADDED: Packing = Packing { vocab: 100, pads: true, row_tables: None, drafts: None };

#[test]
fn sequences_with_one_token_come_first() {
    let mut three = batch(&[(4, 20), (1, 9), (2, 2)]);
    three.logit_rows = vec![3, 3, 4, 6];
    let params = SamplingParams::default();
    let rows = vec![SampleRow::new(&params, 0); 4];
    let mut bytes = Vec::new();
    let inputs = StepInputs::pack(three.clone(), &rows, PADDED, &mut bytes);
    let words = |at: DevicePtrMut<u32>, count: usize| -> Vec<u32> {
        let at = at.address() as usize;
        bytemuck::pod_collect_to_vec(&bytes[at..at + 4 * count])
    };
    assert_eq!((inputs.decodes, inputs.prefills, inputs.bucket), (1, 2, None));
    let order = [4, 0, 1, 2, 3, 5, 6];
    assert_eq!(words(inputs.tokens(), 7), order.map(|row| three.tokens[row]));
    assert_eq!(words(inputs.positions(), 7), order.map(|row| three.positions[row]));
    assert_eq!(words(inputs.contexts(), 3), [9, 20, 2]);
    assert_eq!(words(inputs.table_starts(0), 3), [2, 0, 3]);
    assert_eq!(words(inputs.query_starts(), 4), [0, 1, 5, 7]);
    assert_eq!(words(inputs.logit_rows(), 4), [4, 4, 0, 6]);
    assert_eq!(words(inputs.tables(), 4), three.groups[0].blocks);
}

#[test]
fn drafts_come_in_parts_among_the_sequences_with_one_token() {
    let shape = kernels::attention::AttentionShape::new(8, 2, 64, 16).unwrap();
    // A part holds up to four tokens.
    let packing = |slots| Packing { drafts: Some(DecodeLaunch::with_drafts(shape, slots)), ..PADDED };
    let params = SamplingParams::default();
    let rows = vec![SampleRow::new(&params, 0); 4];
    let mut bytes = Vec::new();
    let four = batch(&[(20, 20), (6, 20), (1, 9), (2, 2)]);
    let inputs = StepInputs::pack(four.clone(), &rows, packing(100), &mut bytes);
    let words = |at: DevicePtrMut<u32>, count: usize| -> Vec<u32> {
        let at = at.address() as usize;
        bytemuck::pod_collect_to_vec(&bytes[at..at + 4 * count])
    };
    assert_eq!((inputs.decodes, inputs.decode_rows, inputs.prefills, inputs.bucket), (4, 9, 1, None));
    assert!(inputs.has_drafts);
    assert_eq!(words(inputs.query_starts(), 6), [0, 4, 6, 7, 9, 29]);
    assert_eq!(words(inputs.contexts(), 5), [18, 20, 9, 2, 20]);
    assert_eq!(words(inputs.table_starts(0), 5), [2, 2, 4, 5, 0]);
    assert_eq!(words(inputs.logit_rows(), 4), [28, 5, 6, 8]);
    assert_eq!((inputs.decode_spans(), inputs.prefill_spans()), (&[(6, 20), (1, 9), (2, 2)][..], &[(20, 20)][..]));
    // With one slot, a block would read more than the longest sequence. So drafts use prefill attention.
    let inputs = StepInputs::pack(four, &rows, packing(1), &mut bytes);
    assert_eq!((inputs.decodes, inputs.decode_rows, inputs.prefills, inputs.has_drafts), (1, 1, 3, false));
    // If all rows are sampled, rows and parts are padded to a bucket.
    let mut drafted = batch(&[(6, 20), (1, 9), (2, 2)]);
    drafted.logit_rows = (0..9).collect();
    let rows = vec![SampleRow::new(&params, 0); 9];
    let inputs = StepInputs::pack(drafted, &rows, packing(100), &mut bytes);
    assert_eq!((inputs.rows, inputs.decodes, inputs.decode_rows, inputs.logits), (16, 16, 16, 16));
    assert_eq!((inputs.bucket, inputs.has_drafts), (Some(16), true));
    let words =
        |at: DevicePtrMut<u32>| -> Vec<u32> { bytemuck::pod_collect_to_vec(&bytes[at.address() as usize..][..4 * 16]) };
    assert_eq!(words(inputs.contexts()), [[18, 20, 9, 2].as_slice(), &[0; 12]].concat());
    assert_eq!(words(inputs.query_starts()), [[0, 4, 6, 7].as_slice(), &[9; 12]].concat());
    // The same holds for a step without drafts.
    let inputs = StepInputs::pack(batch(&[(1, 3), (1, 4), (1, 5)]), &rows[..3], packing(100), &mut bytes);
    assert_eq!((inputs.decodes, inputs.bucket, inputs.has_drafts), (4, Some(4), false));
}

#[test]
fn padding_reads_and_writes_nothing() {
    let params = SamplingParams::default();
    let rows = vec![SampleRow::new(&params, 0); 3];
    let mut bytes = Vec::new();
    let inputs = StepInputs::pack(batch(&[(1, 3), (1, 4), (1, 5)]), &rows, PADDED, &mut bytes);
    assert_eq!((inputs.rows, inputs.decodes, inputs.logits, inputs.bucket), (4, 4, 4, Some(4)));
    let last = |at: u64| bytemuck::pod_read_unaligned::<i32>(&bytes[at as usize + 12..][..4]);
    assert_eq!((last(inputs.slots(0).address()), last(inputs.contexts().address())), (-1, 0));
}

#[test]
fn every_group_has_slots_and_block_tables() {
    let params = SamplingParams::default();
    let rows = vec![SampleRow::new(&params, 0); 3];
    // The second group's blocks have other numbers.
    let two_groups = |sequences: &[(usize, usize)]| {
        let mut two = batch(sequences);
        let mut group = two.groups[0].clone();
        group.blocks.iter_mut().chain(&mut group.slots).for_each(|number| *number += 500);
        two.groups.push(group);
        two
    };
    let mut addresses = Vec::new();
    for sequences in [[(1, 9), (1, 20), (1, 2)], [(1, 17), (1, 32), (1, 31)]] {
        let (two, mut bytes) = (two_groups(&sequences), Vec::new());
        let inputs = StepInputs::pack(two.clone(), &rows, PADDED, &mut bytes);
        let words =
            |at: u64, count: usize| -> Vec<u32> { bytemuck::pod_collect_to_vec(&bytes[at as usize..][..4 * count]) };
        assert_eq!(inputs.bucket, Some(4));
        for (at, group) in two.groups.iter().enumerate() {
            assert_eq!(words(inputs.slots(at).address(), 4), [&group.slots[..], &[u32::MAX]].concat());
            let starts = words(inputs.table_starts(at).address(), 3);
            for (span, start) in two.spans.iter().zip(starts) {
                let count = span.context.div_ceil(16);
                let table = inputs.tables().offset(start as usize).address();
                assert_eq!(words(table, count), group.blocks[span.table..span.table + count]);
            }
        }
        let groups = [0, 1].map(|group| [inputs.slots(group).address(), inputs.table_starts(group).address()]);
        addresses.push((groups, inputs.query_starts().address(), inputs.tables().address()));
    }
    assert_eq!(addresses[0], addresses[1], "a recording finds its inputs whatever the lengths of the tables");
    let packing = Packing { row_tables: Some(16), pads: false, ..PADDED };
    let (two, mut bytes) = (two_groups(&[(1, 9), (2, 20)]), Vec::new());
    let inputs = StepInputs::pack(two, &rows[..2], packing, &mut bytes);
    let table = |group| -> Vec<u32> {
        bytemuck::pod_collect_to_vec(&bytes[inputs.row_tables(group).address() as usize..][..4 * 6])
    };
    assert_eq!((inputs.row_table_stride, table(0)), (2, vec![0, 0, 2, 3, 2, 3]));
    assert_eq!(table(1), [500, 0, 502, 503, 502, 503]);
}
