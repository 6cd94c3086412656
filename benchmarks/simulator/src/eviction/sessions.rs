//! Traces of sessions whose prompts grow: conversations, and agents that call tools and branch. The lengths are assumed.

use loadgen::random::WorkloadRng;

/// A kind of session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Conversations of a few turns after one of several system prompts. Some begin with a document.
    Conversations,
    /// Runs of many tool calls after one of a few long system prompts. An agent may start others that continue from its
    /// own context, or go back some calls and try something else.
    Agents,
}

/// A piece of text. Equal pieces have equal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    number: u32,
    len: usize,
}

/// A request of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRequest {
    text: Vec<Piece>,
    /// Tokens of the prompt. The tokens after it are the answer.
    pub prompt: usize,
}

/// The longest piece of text. Tokens are a piece's number and a position in it.
const LONGEST_PIECE: usize = 1 << 14;
/// The longest prompt. A session ends before it.
const LONGEST_PROMPT: usize = 32_000;

impl SessionRequest {
    /// Returns the tokens of the prompt and the answer.
    pub fn tokens(&self) -> Vec<u32> {
        let tokens = |piece: &Piece| {
            let first = piece.number.wrapping_mul(LONGEST_PIECE as u32);
            (0..piece.len as u32).map(move |at| first.wrapping_add(at))
        };
        self.text.iter().flat_map(tokens).collect()
    }

    /// Returns the numbers of tokens up to the ends of the prompt's messages. The last message is the prompt's end.
    pub fn messages(&self) -> Vec<usize> {
        let ends = self.text.iter().scan(0, |end, piece| {
            *end += piece.len;
            Some(*end)
        });
        ends.take_while(|end| *end <= self.prompt).collect()
    }

    /// Returns the number of tokens of the prompt and the answer.
    pub fn len(&self) -> usize {
        self.text.iter().map(|piece| piece.len).sum()
    }

    /// Returns whether there are no tokens. No request of a trace is empty.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

/// A session between two requests.
struct Session {
    /// When its next request comes.
    at: f64,
    text: Vec<Piece>,
    /// Requests that are left.
    left: usize,
}

/// Creates sessions and their texts.
struct Author {
    kind: Kind,
    random: WorkloadRng,
    /// Pieces written so far.
    pieces: u32,
    /// The system prompts.
    prompts: Vec<Piece>,
}

/// Returns the first `count` requests of a trace in which about `active` sessions are open at a time.
pub fn requests(kind: Kind, count: usize, active: usize, seed: u64) -> Vec<SessionRequest> {
    let mut author = Author::new(kind, seed);
    let mut sessions: Vec<Session> = Vec::new();
    let (mut next_session, mut requests) = (0.0, Vec::with_capacity(count));
    while requests.len() < count {
        let next = (0..sessions.len()).min_by(|&a, &b| sessions[a].at.total_cmp(&sessions[b].at));
        match next.filter(|&at| sessions[at].at < next_session) {
            None => {
                sessions.push(author.session(next_session));
                next_session += author.random.exponential() * author.duration() / active as f64;
            }
            Some(at) => {
                let mut session = sessions.swap_remove(at);
                requests.push(author.request(&mut session));
                sessions.extend(author.branches(&session));
                let len: usize = session.text.iter().map(|piece| piece.len).sum();
                if session.left > 0 && len < LONGEST_PROMPT {
                    sessions.push(session);
                }
            }
        }
    }
    requests
}

impl Author {
    fn new(kind: Kind, seed: u64) -> Self {
        let mut author = Author { kind, random: WorkloadRng::new(seed), pieces: 0, prompts: Vec::new() };
        let (count, median) = match kind {
            Kind::Conversations => (8, 800.0),
            Kind::Agents => (3, 8000.0),
        };
        author.prompts = (0..count).map(|_| author.piece(median, 0.4)).collect();
        author
    }

    /// Writes a piece of log-normal length.
    fn piece(&mut self, median: f64, spread: f64) -> Piece {
        let len = (median * (spread * self.random.normal()).exp()).round() as usize;
        self.pieces += 1;
        Piece { number: self.pieces, len: len.clamp(1, LONGEST_PIECE) }
    }

    /// Draws a number of requests with this mean.
    fn count(&mut self, mean: f64) -> usize {
        (self.random.exponential() * mean).ceil() as usize
    }

    /// Returns the mean time from the first to the last request of a session.
    fn duration(&self) -> f64 {
        match self.kind {
            Kind::Conversations => 6.0,
            Kind::Agents => 20.0 * 0.3,
        }
    }

    /// Begins a session. A few system prompts are much more frequent than the others.
    fn session(&mut self, at: f64) -> Session {
        let popularity = self.random.uniform().powi(2);
        let prompt = self.prompts[((popularity * self.prompts.len() as f64) as usize).min(self.prompts.len() - 1)];
        let (first, left) = match self.kind {
            Kind::Conversations if self.random.uniform() < 0.15 => (self.piece(3000.0, 0.7), self.count(6.0)),
            Kind::Conversations => (self.piece(80.0, 1.0), self.count(6.0)),
            Kind::Agents => (self.piece(400.0, 0.8), self.count(20.0)),
        };
        Session { at, text: vec![prompt, first], left }
    }

    /// Makes the next request of a session, then adds the answer and what follows it to the text.
    fn request(&mut self, session: &mut Session) -> SessionRequest {
        if self.kind == Kind::Agents && session.text.len() > 8 && self.random.uniform() < 0.05 {
            // Goes back one to three calls. Each has an answer and a result.
            let calls = 1 + self.random.below(3);
            session.text.truncate(session.text.len() - 2 * calls);
            session.text.push(self.piece(60.0, 0.5));
        }
        let prompt = session.text.iter().map(|piece| piece.len).sum();
        let (answer, next, pause) = match self.kind {
            Kind::Conversations => (self.piece(250.0, 0.8), self.piece(80.0, 1.0), 1.0),
            // Some tools are slow, or wait for a person.
            Kind::Agents if self.random.uniform() < 0.1 => (self.piece(120.0, 0.6), self.piece(350.0, 1.2), 2.0),
            Kind::Agents => (self.piece(120.0, 0.6), self.piece(350.0, 1.2), 0.1),
        };
        session.text.push(answer);
        let text = session.text.clone();
        session.text.push(next);
        session.at += pause * self.random.exponential();
        session.left = session.left.saturating_sub(1);
        SessionRequest { text, prompt }
    }

    /// Returns the sessions that a session starts after a request.
    fn branches(&mut self, parent: &Session) -> Vec<Session> {
        if self.kind != Kind::Agents || parent.left == 0 || self.random.uniform() > 0.04 {
            return Vec::new();
        }
        let count = 2 + self.random.below(2);
        let branches = (0..count).map(|_| {
            let mut text = parent.text.clone();
            text.push(self.piece(150.0, 0.5));
            Session { at: parent.at, text, left: self.count(6.0) }
        });
        branches.collect()
    }
}
