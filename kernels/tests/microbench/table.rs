//! The printed table.

use std::fmt;

use workbench::{Cost, LinkBytes, Measured};

use super::Table;

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = |text: fn(&Measured) -> &str| self.cases.iter().map(|case| text(case).len()).max().unwrap_or(0);
        let (kernel, shape) = (widest(|case| &case.kernel), widest(|case| &case.shape));
        writeln!(f, "PTX for {} on {}", self.target, self.device)?;
        let columns = match self.cases.first().map(|case| case.cost) {
            Some(Cost::Time { .. }) => "      us    GB/s  % of stream  TFLOP/s",
            _ => "  instructions  bytes/floor  sectors/ideal  conflicts  divergent",
        };
        writeln!(f, "{:kernel$}  {:shape$}  {columns}", "kernel", "problem")?;
        // The first case is the stream itself.
        let stream = self.cases.first().and_then(rate).unwrap_or(f64::NAN);
        for case in &self.cases {
            write!(f, "{:kernel$}  {:shape$}  ", case.kernel, case.shape)?;
            match case.cost {
                Cost::Time { microseconds } => {
                    let bytes = rate(case).unwrap_or(f64::NAN);
                    let flops = case.floor_flops as f64 / microseconds / 1e6;
                    writeln!(f, "{microseconds:8.1} {bytes:7.0} {:12.0} {flops:8.1}", 100.0 * bytes / stream)?;
                }
                Cost::Counts { instructions, sector_bytes, sector_ratio, bank_conflicts, divergent, .. } => {
                    let floor = sector_bytes as f64 / case.floor_bytes as f64;
                    writeln!(
                        f,
                        "{instructions:14} {floor:12.3} {sector_ratio:14.3} {bank_conflicts:10} {divergent:10}"
                    )?;
                }
            }
        }
        if self.links.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nall-reduces between emulated devices: bytes that each rank moves over its links")?;
        writeln!(f, "ranks  exchanges    bytes  over links    floor  moved/floor")?;
        for LinkBytes { ranks, shots, bytes, moved, floor } in &self.links {
            let ratio = *moved as f64 / *floor as f64;
            writeln!(f, "{ranks:5} {shots:10} {bytes:8} {moved:11} {floor:8} {ratio:12.3}")?;
        }
        Ok(())
    }
}

/// Returns the floor's bytes per nanosecond, which is GB/s.
fn rate(case: &Measured) -> Option<f64> {
    match case.cost {
        Cost::Time { microseconds } => Some(case.floor_bytes as f64 / microseconds / 1e3),
        Cost::Counts { .. } => None,
    }
}
