//! Requests as a scheduler sees them: arrival times and numbers of tokens.

/// How a request's tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// One output.
    Single,
    /// This many outputs of one prompt.
    Samples(usize),
    /// A beam search of this width.
    Beams(usize),
}

/// A request of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceRequest {
    /// Arrival, in seconds from the start of the trace.
    pub arrival: f64,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Number of leading prompt tokens that all requests of the trace share.
    pub prefix: usize,
    /// Tokens of each output.
    pub output: usize,
    /// How they are chosen.
    pub method: Method,
}

impl Method {
    /// Returns the number of sequences that run in parallel.
    pub fn width(self) -> usize {
        match self {
            Method::Single => 1,
            Method::Samples(width) | Method::Beams(width) => width,
        }
    }
}

impl TraceRequest {
    /// Returns the tokens of one of its sequences when it is complete.
    pub fn tokens(&self) -> usize {
        self.prompt + self.output
    }
}
