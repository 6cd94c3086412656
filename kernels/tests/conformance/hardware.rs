//! Results of a GPU, recorded once and then compared with every run.
//!
//! `hardware/<gpu>.jsonl` begins with a line of JSON about the machine, `{"machine": ".."}`. Each case follows with a
//! line that has the instruction, a digest of kernel and operands, and the outputs of all threads, 16 hexadecimal
//! digits each.

use serde_json::{Value, json};

use crate::case::{Case, Expect};

/// The outputs of one case on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The instruction, for readers.
    pub line: String,
    /// Identifies the case: a digest of its kernel and operands.
    pub digest: u64,
    /// The outputs of all threads, in order.
    pub outputs: Vec<u64>,
}

impl Record {
    pub fn new(case: &Case, operands: &[Vec<u64>], outputs: &[Vec<u64>]) -> Record {
        Record { line: case.line.clone(), digest: digest(case, operands), outputs: outputs.concat() }
    }

    /// Returns how many outputs differ from another machine's by more than the case allows.
    pub fn differences(&self, other: &Record, case: &Case) -> usize {
        let expected = case.expected(&case.operands()).concat();
        let pairs = self.outputs.iter().zip(&other.outputs).zip(expected);
        let differ = pairs.filter(|((ours, theirs), expected)| match expected {
            Expect::Any => false,
            // Two approximations may differ, as long as each is within the allowed error.
            Expect::Near { .. } if case.is_approximate() => !expected.holds(**ours) || !expected.holds(**theirs),
            _ => ours != theirs,
        });
        differ.count() + self.outputs.len().abs_diff(other.outputs.len())
    }
}

/// Returns the FNV-1a hash of the kernel's text and the operands.
fn digest(case: &Case, operands: &[Vec<u64>]) -> u64 {
    let text = case.kernel("case").into_bytes();
    let bytes = text.into_iter().chain(operands.iter().flatten().flat_map(|value| value.to_le_bytes()));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Returns the text of a recording.
pub fn write(machine: &str, records: &[Record]) -> String {
    let head = json!({ "machine": machine }).to_string() + "\n";
    let line = |record: &Record| {
        let outputs: String = record.outputs.iter().map(|value| format!("{value:016x}")).collect();
        json!({ "line": record.line, "digest": format!("{:016x}", record.digest), "outputs": outputs }).to_string()
            + "\n"
    };
    head + &records.iter().map(line).collect::<String>()
}

/// Returns the machine and the records of a recording, or `None` if the text is not a recording.
pub fn read(text: &str) -> Option<(String, Vec<Record>)> {
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).ok());
    let machine = lines.next()??.get("machine")?.as_str()?.to_owned();
    let record = |line: Option<Value>| {
        let line = line?;
        let field = |name: &str| line.get(name).and_then(Value::as_str);
        let digits = field("outputs")?.as_bytes().chunks(16);
        let word = |digits: &[u8]| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        Some(Record {
            line: field("line")?.to_owned(),
            digest: u64::from_str_radix(field("digest")?, 16).ok()?,
            outputs: digits.map(word).collect::<Option<_>>()?,
        })
    };
    Some((machine, lines.map(record).collect::<Option<_>>()?))
}
