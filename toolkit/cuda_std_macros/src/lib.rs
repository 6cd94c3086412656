//! The macros of `cuda_std`: [`macro@kernel`] and [`shared_array!`].
//!
//! The macros work on plain token streams, without `syn`. A kernel's signature is simple, and this way the device build
//! compiles nothing from a registry. The tokens of parameters and bodies keep their spans, so compiler errors point
//! into the kernel.

mod bounds;
mod function;
mod host;
mod instances;
mod kernel;
mod shared;

use proc_macro::{Delimiter, Group, Ident, Literal, Punct, Spacing, Span, TokenStream, TokenTree};

/// Marks a function as a kernel: an entry point of the PTX.
///
/// All bounds are optional: `max_threads` (threads per block, `.maxntid`), `min_blocks` (blocks that must fit on a
/// multiprocessor, `.minnctapersm`; requires `max_threads`) and `max_regs` (registers per thread, `.maxnreg`). With
/// `arch = "sm_90a"` the kernel exists only in the PTX for that target.
///
/// With `dependent` the entry for `sm_90a` begins with `cuda_std::ptx::control::begin_dependent`, so its launches may
/// begin before earlier launches end. On other targets launches run one after the other, and `dependent` changes
/// nothing. With `dependent = "waits"` the kernel calls `begin_dependent` itself, later. Before that call it may only
/// access memory that no launch writes.
///
/// A generic kernel lists its instances: `instances(T = [F16, Bf16], D = [64, 128])` on `attention<T, const D: u32>`
/// generates the entries `attention_f16_64`, `attention_f16_128` and so on. A second `instances(...)` adds more. A list
/// may override the kernel's bounds: `instances(min_blocks = 3, T = [F16], D = [256])`. The function itself is inlined
/// into each entry, and other functions can call it. The parameters' types are the same for all instances, so they
/// cannot name `T` or `D`.
///
/// For the device, the function becomes an exported `extern "ptx-kernel"` function and a comment in the PTX, from which
/// the builder takes the bounds. For the host, the function stays as it is, and the macro adds a struct of the same
/// name. Its fields are the kernel's arguments, with `DevicePtr<T>` for `*const T`, `DevicePtrMut<T>` for `*mut T` and
/// `TensorTile` for `&CuTensorMap`. The struct implements `cuda_std::launch::Kernel`, which provides the descriptor for
/// launches. For a generic kernel it implements `cuda_std::launch::Instance` for each instance's parameters, and
/// `attention { ... }.instance::<F16, 64>()` is a call of one instance.
#[proc_macro_attribute]
pub fn kernel(attributes: TokenStream, item: TokenStream) -> TokenStream {
    kernel::expand(attributes, item).unwrap_or_else(Error::into_tokens)
}

/// `shared_array![f32; 256]`: a static array in the block's shared memory. Evaluates to a `*mut f32` to its first
/// element.
///
/// Length and type are constants and cannot depend on the kernel's parameters, including generic ones. If only the
/// launch knows the length, use `cuda_std::shared::dynamic_shared_mem`. Every `shared_array!` in the source is one
/// array, regardless of the threads that execute it. Its contents are undefined at first. The alignment is at least 16
/// bytes unless it is given explicitly: `shared_array![f32; 256; 128]`.
#[proc_macro]
pub fn shared_array(input: TokenStream) -> TokenStream {
    shared::expand(input).unwrap_or_else(Error::into_tokens)
}

/// An error in the use of a macro, and its location.
struct Error {
    span: Span,
    message: String,
}

impl Error {
    fn new(span: Span, message: impl Into<String>) -> Error {
        Error { span, message: message.into() }
    }

    /// Returns `::core::compile_error! { "message" }` with the error's span.
    fn into_tokens(self) -> TokenStream {
        let mut text = Literal::string(&self.message);
        text.set_span(self.span);
        let punct = |c, spacing| {
            let mut punct = Punct::new(c, spacing);
            punct.set_span(self.span);
            TokenTree::from(punct)
        };
        let mut group = Group::new(Delimiter::Brace, TokenTree::from(text).into());
        group.set_span(self.span);
        TokenStream::from_iter([
            punct(':', Spacing::Joint),
            punct(':', Spacing::Alone),
            Ident::new("core", self.span).into(),
            punct(':', Spacing::Joint),
            punct(':', Spacing::Alone),
            Ident::new("compile_error", self.span).into(),
            punct('!', Spacing::Alone),
            group.into(),
        ])
    }
}

/// Parses source text that this crate generates.
fn tokens(source: &str) -> Result<TokenStream, Error> {
    source.parse().map_err(|e| Error::new(Span::call_site(), format!("{e}: {source}")))
}

/// Returns whether a token is this punctuation character.
fn is_punct(token: &TokenTree, c: char) -> bool {
    matches!(token, TokenTree::Punct(p) if p.as_char() == c)
}

/// Splits at separators outside `<...>`. Groups are single tokens already.
fn split(input: TokenStream, separator: char) -> Vec<Vec<TokenTree>> {
    let mut parts = vec![Vec::new()];
    let (mut depth, mut arrow) = (0usize, false);
    for token in input {
        if is_punct(&token, '<') {
            depth += 1;
        } else if is_punct(&token, '>') && !arrow {
            depth = depth.saturating_sub(1);
        }
        arrow = is_punct(&token, '-');
        if depth == 0 && is_punct(&token, separator) {
            parts.push(Vec::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(token);
        }
    }
    if parts.last().is_some_and(Vec::is_empty) {
        parts.pop();
    }
    parts
}
