//! What kernels take of a multiprocessor, as NVIDIA's assembler found it: on record, for machines without it.

/// The record: a line for each target and kernel.
const RECORD: &str = include_str!("../../prebuilt/resources.tsv");

/// What a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of static shared memory of a block.
    pub shared: u32,
}

/// What `kernel` takes when it is compiled for `target`, such as `sm_80`; none if that is not on record.
pub fn resources(target: &str, kernel: &str) -> Option<Resources> {
    RECORD.lines().find_map(|line| {
        let mut fields = line.split('\t');
        if fields.next() != Some(target) || fields.next() != Some(kernel) {
            return None;
        }
        let mut number = || fields.next()?.parse().ok();
        Some(Resources { registers: number()?, shared: number()? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_on_record() {
        for kernel in kernels::registry::shipped() {
            for target in ["sm_80", "sm_90a"] {
                let found = resources(target, kernel.name);
                assert!(found.is_some_and(|found| found.registers > 0), "{} for {target}", kernel.name);
            }
        }
        assert_eq!(resources("sm_70", "copy_blocks"), None);
    }
}
