//! Parsing of a kernel's function.

use proc_macro::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};

use crate::{Error, is_punct, split, tokens};

/// One parameter of a kernel.
pub struct FunctionParam {
    /// The parameter's name.
    pub name: String,
    /// The tokens before the colon.
    pattern: Vec<TokenTree>,
    /// The tokens of its type, with their spans in the source.
    pub ty: Vec<TokenTree>,
    /// The text of its type, with usual spacing.
    pub text: String,
}

impl FunctionParam {
    /// Returns whether it is a tensor: a `&CuTensorMap`, which launches pass by value.
    pub fn is_tensor(&self) -> bool {
        self.text.starts_with('&') && self.text.ends_with("CuTensorMap")
    }
}

/// The parts of a kernel function.
pub struct Function {
    /// The function's attributes.
    pub head: TokenStream,
    /// `pub`, `pub(crate)` or similar.
    pub visibility: TokenStream,
    /// The kernel's name.
    pub name: Ident,
    /// The tokens of `<...>` after the name.
    pub generics: Vec<TokenTree>,
    /// The parameters, in parentheses.
    pub params: Group,
    body: TokenTree,
}

impl Function {
    /// Parses a function.
    pub fn parse(item: TokenStream) -> Result<Function, Error> {
        let mut tokens = item.into_iter().peekable();
        let (mut head, mut visibility, mut is_unsafe) = (TokenStream::new(), TokenStream::new(), false);
        loop {
            match tokens.next() {
                Some(hash) if is_punct(&hash, '#') => {
                    head.extend([hash]);
                    head.extend(tokens.next());
                }
                Some(TokenTree::Ident(word)) => match word.to_string().as_str() {
                    "pub" => {
                        visibility.extend([TokenTree::from(word)]);
                        let group = |t: &TokenTree| matches!(t, TokenTree::Group(_));
                        visibility.extend(tokens.next_if(group));
                    }
                    "unsafe" => is_unsafe = true,
                    "fn" if is_unsafe => break,
                    "fn" => {
                        return Err(Error::new(
                            word.span(),
                            "a kernel must be an `unsafe fn`, because it trusts its pointers",
                        ));
                    }
                    _ => return Err(Error::new(word.span(), "a kernel must be a plain `unsafe fn`")),
                },
                other => return Err(Error::new(span(other), "`#[kernel]` applies only to functions")),
            }
        }
        let name = match tokens.next() {
            Some(TokenTree::Ident(name)) => name,
            other => return Err(Error::new(span(other), "expected the kernel's name")),
        };
        let mut generics = Vec::new();
        let params = loop {
            match tokens.next() {
                Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Parenthesis => break g,
                Some(token) => generics.push(token),
                None => return Err(Error::new(name.span(), "expected the kernel's parameters")),
            }
        };
        match tokens.next() {
            Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Brace => {
                Ok(Function { head, visibility, name, generics, params, body: g.into() })
            }
            Some(token) if is_punct(&token, '-') => {
                let message =
                    "a kernel cannot return a value: write results through a parameter, such as `out: *mut f32`";
                Err(Error::new(token.span(), message))
            }
            other => Err(Error::new(span(other), "a kernel cannot have a `where` clause: write bounds within `<...>`")),
        }
    }

    /// Returns the device function of an entry, without the original function's attributes. Tensors are passed as bytes
    /// instead of references. The function begins with `beginning`, then computes the tensors' addresses, and ends with
    /// `body`. Without a `body` it uses the original function's body.
    pub fn entry(
        &self,
        entry: &str,
        params: &[FunctionParam],
        beginning: &str,
        body: Option<TokenStream>,
    ) -> Result<TokenStream, Error> {
        let (mut declared, mut inside) = (TokenStream::new(), tokens(beginning)?);
        for (i, param) in params.iter().enumerate() {
            let typed = |to: &mut TokenStream| -> Result<(), Error> {
                to.extend(param.pattern.iter().cloned());
                to.extend(tokens(":")?);
                to.extend(param.ty.iter().cloned());
                Ok(())
            };
            if param.is_tensor() {
                declared.extend(tokens("_: ::cuda_std::ptx::tensor::TensorParam")?);
                inside.extend(tokens("let")?);
                typed(&mut inside)?;
                inside.extend(tokens(&format!("= {};", tensor_address(entry, i)))?);
            } else {
                typed(&mut declared)?;
            }
            declared.extend(tokens(",")?);
        }
        inside.extend(body.unwrap_or_else(|| self.body.clone().into()));
        let mut out = self.visibility.clone();
        out.extend(tokens(&format!("unsafe extern \"ptx-kernel\" fn {entry}"))?);
        out.extend([TokenTree::from(Group::new(Delimiter::Parenthesis, declared))]);
        out.extend([TokenTree::from(Group::new(Delimiter::Brace, inside))]);
        Ok(out)
    }

    /// Returns the function as written, but declared with `keywords`.
    pub fn declared(&self, keywords: &str) -> Result<TokenStream, Error> {
        let mut out = self.head.clone();
        out.extend(self.visibility.clone());
        out.extend(tokens(keywords)?);
        out.extend([TokenTree::from(self.name.clone())]);
        out.extend(self.generics.iter().cloned());
        out.extend([self.params.clone().into(), self.body.clone()]);
        Ok(out)
    }
}

/// Returns an expression for the address of the tensor map in parameter `index` of an entry. The compiler would copy
/// the map to local memory, which tensor copies cannot access. Therefore the expression refers to the parameter by its
/// PTX name.
fn tensor_address(entry: &str, index: usize) -> String {
    format!(
        "{{
            let address: *const ::cuda_std::ptx::tensor::CuTensorMap;
            /* SAFETY: computes the address of a parameter that contains a map, and accesses no memory. */
            unsafe {{
                ::core::arch::asm!(
                    \"mov.b64 {{0}}, {entry}_param_{index};\", \"cvta.param.u64 {{0}}, {{0}};\", out(reg64) address,
                    options(pure, nomem, nostack, preserves_flags),
                );
                &*address
            }}
        }}"
    )
}

fn span(token: Option<TokenTree>) -> Span {
    token.map_or_else(Span::call_site, |t| t.span())
}

/// Parses the parameters of a function.
pub fn parse_params(group: &Group) -> Result<Vec<FunctionParam>, Error> {
    let mut params = Vec::new();
    for part in split(group.stream(), ',') {
        let bad = || Error::new(part.first().map_or(group.span(), TokenTree::span), "expected `name: type`");
        let colon = part.iter().position(|t| is_punct(t, ':')).ok_or_else(bad)?;
        let name = match &part[..colon] {
            [TokenTree::Ident(name)] => name.to_string(),
            [TokenTree::Ident(mutable), TokenTree::Ident(name)] if mutable.to_string() == "mut" => name.to_string(),
            _ => return Err(bad()),
        };
        let ty = &part[colon + 1..];
        let pattern = part[..colon].to_vec();
        params.push(FunctionParam { name, pattern, ty: ty.to_vec(), text: text(ty) });
    }
    Ok(params)
}

/// Formats a type with usual spacing: spaces only between words.
fn text(tokens: &[TokenTree]) -> String {
    let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    tokens.iter().fold(String::new(), |mut text, token| {
        let token = token.to_string();
        if word(text.chars().last()) && word(token.chars().next()) {
            text.push(' ');
        }
        text + &token
    })
}
