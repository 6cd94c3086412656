//! What is asked of a server, as far as scheduling goes: when, and how many tokens.

/// How a request's tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// One output.
    Single,
    /// So many outputs of one prompt.
    Samples(usize),
    /// A beam search of this width.
    Beams(usize),
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceRequest {
    /// Seconds from the beginning of the trace.
    pub arrival: f64,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// The first tokens of the prompt that all requests of the trace have in common.
    pub prefix: usize,
    /// Tokens of each output.
    pub output: usize,
    /// How they are chosen.
    pub method: Method,
}

impl Method {
    /// Sequences that run side by side.
    pub fn width(self) -> usize {
        match self {
            Method::Single => 1,
            Method::Samples(width) | Method::Beams(width) => width,
        }
    }
}

impl TraceRequest {
    /// Tokens of one of its sequences when it is complete.
    pub fn tokens(&self) -> usize {
        self.prompt + self.output
    }
}
