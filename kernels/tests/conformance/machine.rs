//! The machine that runs the cases, for now the emulator. All other code here handles only texts, names and bytes.

use emulator::{Arg, EmulatedDevice, PtxModule};

use crate::case::{BLOCK, Case, GRID, HEADER, NUMBERS, THREADS};

/// The loaded kernels of the cases.
pub struct Machine {
    module: PtxModule,
}

/// Returns the text of a module with the kernels of all cases, named `case_0` and so on.
pub fn module(cases: &[Case]) -> String {
    let kernels = cases.iter().enumerate().map(|(i, case)| case.kernel(&entry(i)));
    HEADER.to_owned() + &kernels.collect::<String>()
}

fn entry(case: usize) -> String {
    format!("case_{case}")
}

impl Machine {
    /// Name of the machine that runs the cases.
    pub const NAME: &str = "emulator";

    pub fn load(cases: &[Case]) -> Machine {
        // If the module does not load, each kernel is loaded alone to name the one at fault.
        let module = PtxModule::parse(&module(cases)).unwrap_or_else(|_| {
            for case in cases {
                let text = HEADER.to_owned() + &case.kernel("case");
                PtxModule::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", case.line));
            }
            unreachable!("each case loads by itself")
        });
        Machine { module }
    }

    /// Launches the kernel of a case and returns the outputs of each thread.
    pub fn run(&self, index: usize, case: &Case, operands: &[Vec<u64>]) -> Vec<Vec<u64>> {
        let rows = |row: &Vec<u64>| {
            let padding = (row.len() % 2 == 1).then_some(0);
            row.iter().copied().chain(padding).collect::<Vec<_>>()
        };
        let input: Vec<u8> = operands.iter().flat_map(rows).flat_map(u64::to_le_bytes).collect();
        let stride = 8 * case.outputs().next_multiple_of(2);
        let mut device = EmulatedDevice::new();
        let input = device.alloc_from("operands", &input);
        let output = device.alloc_from("outputs", &vec![0xee; THREADS * stride]);
        let args = [Arg::Ptr(input), Arg::Ptr(output), Arg::U32(NUMBERS.0), Arg::U64(NUMBERS.1)];
        let (grid, block) = ([GRID as u32, 1, 1], [BLOCK as u32, 1, 1]);
        device
            .launch(&self.module, &entry(index), grid, block, 0, &args)
            .unwrap_or_else(|fault| panic!("{}: {fault}", case.line));
        let bytes = device.read(output, THREADS * stride).unwrap_or_else(|error| panic!("{}: {error}", case.line));
        let words = |row: &[u8]| {
            let words =
                row.chunks_exact(8).map(|word| word.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)));
            words.take(case.outputs()).collect()
        };
        bytes.chunks_exact(stride).map(words).collect()
    }
}
