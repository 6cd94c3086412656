//! Server-sent events, as far as OpenAI's streams use them: one line of data per event.

/// Maximum bytes per line. A broken server might never end one.
const MOST: usize = 1 << 20;

/// Assembles lines from pieces that may start and end anywhere.
#[derive(Default)]
pub struct Events {
    line: Vec<u8>,
}

impl Events {
    /// Returns the data of the events that `bytes` completes.
    ///
    /// # Errors
    /// If a line is longer than 1 MiB.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let mut data = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.len() > MOST {
                return Err("the stream has a line of more than 1 MiB".into());
            }
            if piece.ends_with(b"\n") {
                if let Some(payload) = self.line.strip_prefix(b"data:") {
                    data.push(payload.trim_ascii().to_vec());
                }
                self.line.clear();
            }
        }
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_assembled_from_any_pieces() {
        let stream = b": hello\ndata: {\"a\":1}\n\nevent: x\r\ndata:b\r\n\r\ndata: [DONE]\n\ndata: cut";
        for size in 1..=stream.len() {
            let mut events = Events::default();
            let data: Vec<_> = stream.chunks(size).flat_map(|piece| events.push(piece).unwrap()).collect();
            assert_eq!(data, [&b"{\"a\":1}"[..], b"b", b"[DONE]"], "pieces of {size}");
        }
    }

    #[test]
    fn a_line_without_end_is_an_error() {
        let mut events = Events::default();
        assert!((0..20).any(|_| events.push(&[b'x'; 1 << 16]).is_err()));
    }
}
