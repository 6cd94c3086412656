//! A compiled template with limits on its cost.
//!
//! Templates come with downloaded models and run for each request. The parser and the compiler are recursive, so the
//! source is checked before it is parsed. A rendering is limited by its number of instructions and by a budget in
//! bytes.

use std::collections::HashSet;
use std::sync::Arc;

use minijinja::machinery::{
    CompiledTemplate, TemplateConfig, Token, Vm, WhitespaceConfig, make_string_output, tokenize,
};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use super::{budget, environment, hooks, source};

/// Limits of a rendering.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    instructions: u64,
    /// Bytes to read and write, without the share for the conversation.
    bytes: u64,
}

/// Limits of a rendering for a client.
pub(super) const FULL: Bounds = Bounds { instructions: 10_000_000, bytes: budget::BASE };
/// Limits of a rendering that probes a form when the template is loaded. Dozens run, so an endless template must fail
/// quickly.
pub(super) const PROBE: Bounds = Bounds { instructions: 100_000, bytes: 2 << 20 };

/// Maximum bytes of a template's source. The longest known template has a tenth of this.
const MAX_SOURCE: usize = 512 << 10;
/// Maximum tokens in one tag. For example, `{{ 1 + 1 }}` has three.
const MAX_TAG_WORDS: usize = 2_000;
/// Maximum nesting of brackets in one tag.
const MAX_BRACKETS: usize = 100;
/// Maximum bytes of a name. Each instruction may look one up.
const MAX_NAME: usize = 200;
/// Maximum number of `elif` in a template. The parser recurses at each.
const MAX_BRANCHES: usize = 2_000;
/// Stack size of the compiling thread, in bytes. Each token of a tag may be a level of recursion.
const COMPILE_STACK: usize = 64 << 20;
/// Stack size of the rendering thread, in bytes. Macros may nest 125 calls deep.
const RENDER_STACK: usize = 16 << 20;

const NAME: &str = "chat";
const WHITESPACE: WhitespaceConfig =
    WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };

/// A compiled template.
#[derive(Debug)]
pub(super) struct Program {
    environment: Environment<'static>,
    /// Borrows from `_source`, so it must be dropped first.
    template: CompiledTemplate<'static>,
    /// Variables that the template reads without setting them.
    variables: HashSet<String>,
    bounds: Bounds,
    _source: Arc<str>,
}

/// The variables of a rendering.
pub(super) struct Inputs {
    pub(super) variables: Value,
    /// Values whose size increases the budget.
    pub(super) weighed: Vec<Value>,
}

impl Program {
    /// Compiles a template.
    ///
    /// # Errors
    /// If it is not valid Jinja, or is too large.
    pub(super) fn new(template: &str) -> Result<Self, Error> {
        if template.len() > MAX_SOURCE {
            return Err(invalid(format!("it has {} bytes, and the limit is {MAX_SOURCE}", template.len())));
        }
        on_stack(COMPILE_STACK, || {
            check_tags(template)?;
            let source: Arc<str> = unfolded(&source::translate(template))?.into();
            check_tags(&source)?;
            // SAFETY: the text is on the heap, is never changed, and is dropped after `template`, which is the only
            // borrower.
            let text: &'static str = unsafe { &*Arc::as_ptr(&source) };
            let config = TemplateConfig {
                syntax_config: Default::default(),
                ws_config: WHITESPACE,
                default_auto_escape: Arc::new(|_| AutoEscape::None),
            };
            let mut template = CompiledTemplate::new(NAME, text, &config)?;
            hooks::add(&mut template)?;
            let variables = Environment::empty().template_from_str(text)?.undeclared_variables(false);
            Ok(Program { environment: environment::new(), template, variables, bounds: FULL, _source: source })
        })
        .map(|program| program.within(FULL))
    }

    /// Returns the program with other limits.
    pub(super) fn within(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self.environment.set_fuel(Some(bounds.instructions));
        self
    }

    /// Whether the template reads a variable without setting it.
    pub(super) fn reads(&self, variable: &str) -> bool {
        self.variables.contains(variable)
    }

    /// Renders the template. `inputs` is called on the rendering thread.
    ///
    /// # Errors
    /// If the template refuses its inputs, fails, or exceeds a limit.
    pub(super) fn render(&self, inputs: impl FnOnce() -> Inputs + Send) -> Result<String, Error> {
        on_stack(RENDER_STACK, || {
            budget::lift();
            let Inputs { variables, weighed } = inputs();
            budget::start(self.bounds.bytes, &weighed)?;
            let mut text = String::with_capacity(self.template.buffer_size_hint);
            let vm = Vm::new(&self.environment);
            let CompiledTemplate { instructions, blocks, .. } = &self.template;
            vm.eval(instructions, variables, blocks, &mut make_string_output(&mut text), AutoEscape::None)?;
            Ok(text)
        })
    }
}

fn invalid(why: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

/// Runs `work` on a thread with `bytes` of stack.
fn on_stack<T: Send>(bytes: usize, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat-template".into()).stack_size(bytes);
        let thread = thread
            .spawn_scoped(scope, work)
            .map_err(|error| invalid(format!("cannot start a thread to run on: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(invalid("it made the template engine panic".into())))
    })
}

/// Refuses tags that are too long or nest too deeply for the recursive parser.
fn check_tags(source: &str) -> Result<(), Error> {
    let (mut words, mut brackets, mut branches) = (0, 0_usize, 0);
    for token in tokenize(source, false, Default::default(), WHITESPACE) {
        let (token, span) = token?;
        words += 1;
        let name = if let Token::Ident(name) = token { name.len() } else { 0 };
        match token {
            Token::VariableStart | Token::BlockStart => (words, brackets) = (0, 0),
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => brackets += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => brackets = brackets.saturating_sub(1),
            Token::Ident("elif") => branches += 1,
            _ => {}
        }
        let bounds = [
            (words, MAX_TAG_WORDS, "words in a tag"),
            (brackets, MAX_BRACKETS, "nested brackets"),
            (branches, MAX_BRANCHES, "elif branches"),
            (name, MAX_NAME, "bytes in a name"),
        ];
        if let Some((_, most, what)) = bounds.iter().find(|(n, most, _)| n > most) {
            return Err(invalid(format!("line {} has more than {most} {what}", span.start_line)));
        }
    }
    Ok(())
}

/// Keeps the compiler from computing products of constants, which may be long. For example, `'a' * 9` becomes `'a' *
/// python_one * 9`.
fn unfolded(source: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    let mut before = None;
    for token in tokenize(source, false, Default::default(), WHITESPACE) {
        let (token, span) = token?;
        // After an opening bracket or a comma, `*` unpacks arguments.
        if matches!(token, Token::Mul) && !matches!(before, Some(Token::ParenOpen | Token::Comma)) {
            let at = span.start_offset as usize;
            out.push_str(source.get(copied..at).unwrap_or_default());
            out.push_str("* ");
            out.push_str(environment::ONE);
            out.push(' ');
            copied = at;
        }
        before = Some(token);
    }
    out.push_str(source.get(copied..).unwrap_or_default());
    Ok(out)
}
