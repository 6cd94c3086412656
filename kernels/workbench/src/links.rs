//! Bytes that all-reduces send over the links between devices, as the emulator counts them.

use emulator::driver;
use kernels::communicator::ExchangeShape;
use launch::Result;
use serde::Serialize;

use crate::group::{DeviceGroup, GroupSum, MailboxPlace};
use crate::number::{ProblemRng, Type};

/// The bytes that a rank of an all-reduce moves over its links, and the least that it must move.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LinkBytes {
    /// Number of ranks.
    pub ranks: usize,
    /// Number of exchanges, one or two.
    pub shots: u32,
    /// Bytes that each rank contributes to the sum.
    pub bytes: u64,
    /// Bytes in the 32-byte sectors of other devices' memory that a rank reads and writes. The highest of all ranks.
    pub moved: u64,
    /// Bytes that a rank must receive. With one exchange, everything that the other ranks contribute. With two, the
    /// contributions to its part of the sum, and then the other ranks' parts.
    pub floor: u64,
}

impl LinkBytes {
    /// Counts an all-reduce of `bytes` bytes, with a grid for devices of 16 multiprocessors.
    ///
    /// # Errors
    /// [`launch::Error`], also if a kernel faults.
    pub fn count(ptx: &str, ranks: usize, shots: u32, bytes: usize) -> Result<Self> {
        let group = DeviceGroup::new(ptx, Type::F16, ranks, 1, MailboxPlace::Devices)?;
        let mut random = ProblemRng(1);
        let numbers: Vec<_> = (0..ranks).map(|_| random.bits(Type::F16, bytes / 2)).collect();
        let x = group.upload("x", &numbers)?;
        let shape = ExchangeShape::of_sum(bytes as u32 / 2, 16);
        for (rank, device) in group.devices.iter().enumerate() {
            device.context.make_current()?;
            let _ = driver::collect_reports(true); // the context is current
            group.sum(rank, GroupSum { x: &x[rank], part: None, shots, norm: None, shape })?;
        }
        group.download(&x)?;
        let mut moved = 0;
        for device in &group.devices {
            device.context.make_current()?;
            let reports = driver::take_reports().unwrap_or_default();
            moved = reports.iter().map(|launch| 32 * launch.report.total.peer_sectors).sum::<u64>().max(moved);
        }
        let (bytes, n) = (bytes as u64, ranks as u64);
        let floor = if shots == 1 { (n - 1) * bytes } else { 2 * (n - 1) * bytes / n };
        Ok(LinkBytes { ranks, shots, bytes, moved, floor })
    }
}
