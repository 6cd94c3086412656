//! The macros of `cuda_std`: [`macro@kernel`] and [`shared_array!`].
//!
//! They work on plain token streams, without `syn`: a kernel's signature is simple, and the device build then
//! compiles nothing from a registry. Tokens of parameters and bodies keep their spans, so that compiler errors point
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
/// multiprocessor, `.minnctapersm`; it needs `max_threads`) and `max_regs` (registers per thread, `.maxnreg`). With
/// `arch = "sm_90a"` there is a kernel in the PTX for that target alone.
///
/// With `dependent` the entry for `sm_90a` begins with `cuda_std::ptx::control::begin_dependent`, so that launches of it may begin before those ahead of
/// them are over; for other targets, whose launches come one after the other, nothing changes. With `dependent = "waits"` the kernel calls that itself,
/// later: whatever it accesses before no launch writes.
///
/// A generic kernel lists what there is to be of it: `instances(T = [F16, Bf16], D = [64, 128])` on `attention<T, const D:
/// u32>` gives the entries `attention_f16_64`, `attention_f16_128` and so on; a second `instances(...)` adds to them. Its entries may
/// have bounds of their own in place of the kernel's: `instances(min_blocks = 3, T = [F16], D = [256])`. The function itself is
/// inlined into each, and can be called by others. The parameters' types are the same for all: they don't name `T` or `D`.
///
/// For the device this becomes an exported `extern "ptx-kernel"` function and a comment in the PTX from which the
/// builder takes the bounds. On the host the function stays what it is, and a struct of the same name appears beside it:
/// its fields are the kernel's arguments, with `DevicePtr<T>` for `*const T`, `DevicePtrMut<T>` for `*mut T` and `TensorTile` for
/// `&CuTensorMap`. It implements
/// `cuda_std::launch::Kernel`, which has the descriptor from which launches are made. Of a generic kernel it implements
/// `cuda_std::launch::Instance` for each list of parameters there is, and `attention { ... }.instance::<F16, 64>()` is the
/// call of one.
#[proc_macro_attribute]
pub fn kernel(attributes: TokenStream, item: TokenStream) -> TokenStream {
    kernel::expand(attributes, item).unwrap_or_else(Error::into_tokens)
}

/// `shared_array![f32; 256]`: a static array in the block's shared memory, as `*mut f32` to its first element.
///
/// Length and type are constants: they can name neither the kernel's parameters nor generic ones. A length that only the
/// launch knows is that of `cuda_std::shared::dynamic_shared_mem`. Every place in the source that says
/// `shared_array!` is one array, whichever threads execute it; its contents are undefined at first. An alignment may
/// follow: `shared_array![f32; 256; 128]`, at least 16 bytes without one.
#[proc_macro]
pub fn shared_array(input: TokenStream) -> TokenStream {
    shared::expand(input).unwrap_or_else(Error::into_tokens)
}

/// What is wrong with the use of a macro, and where.
struct Error {
    span: Span,
    message: String,
}

impl Error {
    fn new(span: Span, message: impl Into<String>) -> Error {
        Error { span, message: message.into() }
    }

    /// `::core::compile_error! { "message" }`, at the place of the error.
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

/// Source text of this macro's own making as tokens.
fn tokens(source: &str) -> Result<TokenStream, Error> {
    source.parse().map_err(|e| Error::new(Span::call_site(), format!("{e}: {source}")))
}

/// Whether a token is this punctuation character.
fn is_punct(token: &TokenTree, c: char) -> bool {
    matches!(token, TokenTree::Punct(p) if p.as_char() == c)
}

/// Splits at the separators that stand outside of `<...>`; groups are single tokens already.
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
