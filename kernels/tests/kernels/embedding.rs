//! Rows of tables.
//!
//! Tried by hand on the source: without the bound of `gather_rows`,
//! `rows_of_any_width_are_looked_up_with_no_more_sectors_than_needed` fails, out of bounds.

use workbench::cases::embedding::{Lookup, LookupProblem};
use workbench::number::Type;

use crate::frame::gpu::{Gpu, TARGETS};

fn rows(ty: Type, lookup: Lookup, rows: usize, width: usize) -> LookupProblem {
    LookupProblem { ty, lookup, rows, width, neutral: false, seed: width as u64 }
}

const LOOKUPS: [Lookup; 4] = [Lookup::Gather, Lookup::Embed, Lookup::Part, Lookup::Add];

#[test]
fn rows_of_any_width_are_looked_up_with_no_more_sectors_than_needed() {
    let mut gpus = TARGETS.map(|(target, _)| Gpu::new(target));
    for (seed, (count, width)) in (0..).zip([(1, 8), (7, 96), (3, 1032), (4, 2048)]) {
        for (i, lookup) in LOOKUPS.into_iter().enumerate() {
            for (j, gpu) in gpus.iter_mut().enumerate() {
                gpu.seed(seed);
                let case = rows(Type::ALL[(i + j + width / 8) % 2], lookup, count, width).case();
                let report = gpu.run(&case);
                if width.is_multiple_of(16) && gpu.is_emulator() {
                    assert!(report.total.sector_ratio() <= 1.02, "{}", report.total.sector_ratio());
                    // Each warp also reads the index of its row, one sector.
                    let indices = 2 * 32 * (count * width.div_ceil(256)) as u64;
                    assert!(report.total.sectors * 32 <= case.floor.bytes + indices, "{lookup:?} {width}");
                }
            }
        }
    }
}
