//! `shared_array!`.

use proc_macro::{Delimiter, Group, Span, TokenStream, TokenTree};

use crate::{Error, split, tokens};

/// Expands to a module-level `.shared` declaration and an expression for its address.
///
/// The inline assembly that takes the address must not contain the declaration: the compiler may duplicate the
/// assembly, and each copy would declare another array. A `global_asm!` item must be in a module, so the macro creates
/// one, which imports everything from the surrounding module.
pub fn expand(input: TokenStream) -> Result<TokenStream, Error> {
    let parts = split(input, ';');
    let (ty, len, align) = match parts.as_slice() {
        [ty, len] => (ty.clone(), len.clone(), tokens("16")?),
        [ty, len, align] => (ty.clone(), len.clone(), align.iter().cloned().collect()),
        _ => return Err(Error::new(Span::call_site(), "expected `shared_array![type; length]`")),
    };
    let name = symbol(Span::call_site());

    let mut module = tokens("#[allow(unused_imports)] use super::*; pub(super) const LEN: usize =")?;
    module.extend([group(Delimiter::Parenthesis, len.into_iter().collect())]);
    module.extend(tokens("; pub(super) type Element =")?);
    module.extend(ty);
    module.extend(tokens("; pub(super) const ALIGN: usize =")?);
    module.extend([group(Delimiter::Parenthesis, align)]);
    module.extend(tokens(&format!(
        "; const _: () = assert!(ALIGN >= ::core::mem::align_of::<Element>() && ALIGN.is_power_of_two());
         #[cfg(target_arch = \"nvptx64\")]
         ::core::arch::global_asm!(
            \".shared .align {{align}} .b8 {name}[{{bytes}}];\",
            align = const ALIGN,
            bytes = const LEN * ::core::mem::size_of::<Element>(),
         );"
    ))?);

    let mut block = tokens("#[allow(dead_code)] mod shared")?;
    block.extend([group(Delimiter::Brace, module)]);
    block.extend(tokens(&format!(
        "#[cfg(target_arch = \"nvptx64\")]
         {{
            let address: *mut shared::Element;
            #[allow(unused_unsafe)]
            unsafe {{
                ::core::arch::asm!(
                    \"cvta.shared.u64 {{0}}, {name};\", out(reg64) address, options(pure, nomem, nostack, preserves_flags)
                );
            }}
            address
         }}
         #[cfg(not(target_arch = \"nvptx64\"))]
         ::cuda_std::device_only::<*mut shared::Element>()"
    ))?);
    Ok(group(Delimiter::Brace, block).into())
}

fn group(delimiter: Delimiter, stream: TokenStream) -> TokenTree {
    Group::new(delimiter, stream).into()
}

/// Returns a name for the array, made from its crate, file, line and column. Repeated builds thus produce the same PTX.
fn symbol(span: Span) -> String {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let place = format!("{package}_{}_{}_{}", span.file(), span.line(), span.column());
    let clean = place.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    format!("shared_{}", clean.collect::<String>())
}
