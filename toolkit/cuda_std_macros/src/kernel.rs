//! `#[kernel]`: takes a function apart, and puts together what the device and the host see of it.

use proc_macro::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};

use crate::bounds::Bounds;
use crate::host::Host;
use crate::instances::{Instance, Instances};
use crate::{Error, is_punct, split, tokens};

/// One parameter of a kernel.
pub struct Param {
    /// Its name.
    pub name: String,
    /// Its type, with the places in the source where it stands.
    pub ty: Vec<TokenTree>,
    /// Its type as one would write it.
    pub text: String,
}

/// A kernel function, taken apart.
pub struct Function {
    /// Attributes and visibility.
    head: TokenStream,
    /// `pub` or alike.
    pub visibility: TokenStream,
    /// The kernel's name.
    pub name: Ident,
    /// What stands in `<...>` after the name.
    pub generics: Vec<TokenTree>,
    params: Group,
    body: TokenTree,
}

pub fn expand(attributes: TokenStream, item: TokenStream) -> Result<TokenStream, Error> {
    let (lists, bounds): (Vec<_>, Vec<_>) = split(attributes, ',').into_iter().partition(|part| is_list(part));
    let (bounds, instances) = (Bounds::parse(bounds)?, Instances::parse(&lists)?);
    let function = Function::parse(item)?;
    let host = Host::new(&function, parse_params(&function.params)?, &bounds);
    if instances.is_empty() {
        if !function.generics.is_empty() {
            let message = "a generic kernel says which `instances(...)` there are of it";
            return Err(Error::new(function.name.span(), message));
        }
        let mut out = tokens("#[cfg(target_arch = \"nvptx64\")] #[unsafe(no_mangle)]")?;
        out.extend(function.declared("unsafe extern \"ptx-kernel\" fn")?);
        out.extend(marker(&function.name.to_string(), &bounds)?);
        out.extend(tokens("#[cfg(not(target_arch = \"nvptx64\"))] #[allow(clippy::too_many_arguments)]")?);
        out.extend(function.declared("unsafe fn")?);
        out.extend(host.kernel()?);
        return Ok(out);
    }
    let mut out = tokens("#[inline(always)] #[allow(clippy::too_many_arguments)]")?;
    out.extend(function.declared("unsafe fn")?);
    let instances = instances.of(&function.name, &function.generics)?;
    for instance in &instances {
        out.extend(entry(&function, &host, instance)?);
        out.extend(marker(&instance.name, &bounds)?);
    }
    out.extend(host.family(&instances)?);
    Ok(out)
}

/// Whether a part of the attribute is `instances(...)`.
fn is_list(part: &[TokenTree]) -> bool {
    matches!(part, [TokenTree::Ident(key), TokenTree::Group(_)] if key.to_string() == "instances")
}

/// The entry of an instance, which calls the generic function.
fn entry(function: &Function, host: &Host<'_>, instance: &Instance) -> Result<TokenStream, Error> {
    let (name, generics) = (&function.name, instance.values.join(", "));
    let mut out = tokens(&format!(
        "#[doc = \"`{name}` of these parameters.\"] #[cfg(target_arch = \"nvptx64\")] #[unsafe(no_mangle)]"
    ))?;
    out.extend(function.visibility.clone());
    out.extend(tokens(&format!("unsafe extern \"ptx-kernel\" fn {}", instance.name))?);
    out.extend([TokenTree::from(function.params.clone())]);
    let arguments: Vec<_> = host.params.iter().map(|p| p.name.as_str()).collect();
    out.extend(tokens(&format!(
        "{{ /* SAFETY: the entry's contract is the function's. */ unsafe {{ {name}::<{generics}>({}) }} }}",
        arguments.join(", ")
    ))?);
    // The host, too, is to see whether there can be such an instance.
    out.extend(tokens(&format!(
        "#[cfg(not(target_arch = \"nvptx64\"))] const _: () = {{ let _ = {name}::<{generics}>; }};"
    ))?);
    Ok(out)
}

/// The comment in the PTX that describes an entry: the builder reads it back, and adds the bounds to the entry.
fn marker(name: &str, bounds: &Bounds) -> Result<TokenStream, Error> {
    let marker = format!("//@kernel {name}{}", bounds.marker());
    tokens(&format!("#[cfg(target_arch = \"nvptx64\")] ::core::arch::global_asm!({marker:?});"))
}

impl Function {
    fn parse(item: TokenStream) -> Result<Function, Error> {
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
                    "fn" => return Err(Error::new(word.span(), "a kernel is an `unsafe fn`: it trusts its pointers")),
                    _ => return Err(Error::new(word.span(), "a kernel is a plain `unsafe fn`")),
                },
                other => return Err(Error::new(span(other), "`#[kernel]` is for functions")),
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
            other => Err(Error::new(span(other), "a kernel returns nothing, and has no `where`")),
        }
    }

    /// The function as written, declared as `keywords` say.
    fn declared(&self, keywords: &str) -> Result<TokenStream, Error> {
        let mut out = self.head.clone();
        out.extend(self.visibility.clone());
        out.extend(tokens(keywords)?);
        out.extend([TokenTree::from(self.name.clone())]);
        out.extend(self.generics.iter().cloned());
        out.extend([self.params.clone().into(), self.body.clone()]);
        Ok(out)
    }
}

fn span(token: Option<TokenTree>) -> Span {
    token.map_or_else(Span::call_site, |t| t.span())
}

fn parse_params(group: &Group) -> Result<Vec<Param>, Error> {
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
        params.push(Param { name, ty: ty.to_vec(), text: text(ty) });
    }
    Ok(params)
}

/// A type as one would write it: spaces between words, and nowhere else.
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
