//! `#[kernel]`.

use proc_macro::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};

use crate::instances::{Instance, Instances};
use crate::{Error, is_punct, split, tokens};

/// Launch bounds as written; what is not given is not limited.
#[derive(Default)]
struct Bounds {
    max_threads: Option<u32>,
    min_blocks: Option<u32>,
    max_regs: Option<u32>,
}

/// One parameter: its name, its type as tokens and as text.
struct Param {
    name: String,
    ty: TokenStream,
    text: String,
}

/// A kernel function, taken apart.
struct Function {
    /// Attributes and visibility.
    head: TokenStream,
    visibility: TokenStream,
    name: Ident,
    /// What stands in `<...>` after the name.
    generics: Vec<TokenTree>,
    params: Group,
    body: TokenTree,
}

pub fn expand(attributes: TokenStream, item: TokenStream) -> Result<TokenStream, Error> {
    let (bounds, instances) = Bounds::parse(attributes)?;
    let function = Function::parse(item)?;
    let params = parse_params(&function.params)?;
    let name = function.name.to_string();
    match instances {
        None if function.generics.is_empty() => {
            let mut out = tokens("#[cfg(target_arch = \"nvptx64\")] #[unsafe(no_mangle)]")?;
            out.extend(function.declared("unsafe extern \"ptx-kernel\" fn")?);
            out.extend(marker(&name, &bounds)?);
            out.extend(tokens("#[cfg(not(target_arch = \"nvptx64\"))] #[allow(clippy::too_many_arguments)]")?);
            out.extend(function.declared("unsafe fn")?);
            out.extend(launches(&function.visibility, &name, &params, &bounds)?);
            Ok(out)
        }
        None => Err(Error::new(function.name.span(), "a generic kernel says which `instances(...)` there are of it")),
        Some(instances) => {
            let mut out = tokens("#[inline(always)] #[allow(clippy::too_many_arguments)]")?;
            out.extend(function.declared("unsafe fn")?);
            let instances = instances.of(&function.name, &function.generics)?;
            for instance in &instances {
                out.extend(tokens(&format!(
                    "#[doc = \"`{name}` of these parameters.\"] #[cfg(target_arch = \"nvptx64\")] #[unsafe(no_mangle)]"
                ))?);
                out.extend(function.visibility.clone());
                out.extend(tokens(&format!("unsafe extern \"ptx-kernel\" fn {}", instance.name))?);
                out.extend([TokenTree::from(function.params.clone())]);
                let arguments: Vec<_> = params.iter().map(|p| p.name.as_str()).collect();
                let generics = instance.values.join(", ");
                out.extend(tokens(&format!(
                    "{{ /* SAFETY: the caller's. */ unsafe {{ {name}::<{generics}>({}) }} }}",
                    arguments.join(", ")
                ))?);
                // The host, too, is to see whether there can be such an instance.
                out.extend(tokens(&format!(
                    "#[cfg(not(target_arch = \"nvptx64\"))] const _: () = {{ let _ = {name}::<{generics}>; }};"
                ))?);
                out.extend(marker(&instance.name, &bounds)?);
                out.extend(launches(&function.visibility, &instance.name, &params, &bounds)?);
            }
            out.extend(family(&function.visibility, &name, &params, &instances)?);
            Ok(out)
        }
    }
}

/// The comment in the PTX that describes an entry: the builder reads it back, and adds the bounds to the entry.
fn marker(name: &str, bounds: &Bounds) -> Result<TokenStream, Error> {
    let marker = format!("//@kernel {name}{}", bounds.marker());
    tokens(&format!("#[cfg(target_arch = \"nvptx64\")] ::core::arch::global_asm!({marker:?});"))
}

/// The type of the kernel's name, and what implements `Kernel` for it.
fn launches(visibility: &TokenStream, name: &str, params: &[Param], bounds: &Bounds) -> Result<TokenStream, Error> {
    let doc = format!("Launches of the kernel `{name}`: the types of its arguments, and its descriptor.");
    let mut out = host_type(visibility, name, &doc)?;
    let mut list = TokenStream::new();
    for Param { name, ty, text } in params {
        list.extend(tokens("::cuda_std::launch::Param::of::<")?);
        list.extend(ty.clone());
        list.extend(tokens(&format!(">({name:?}, {text:?}),"))?);
    }
    let mut body = args(params)?;
    body.extend(tokens("const DESCRIPTOR: ::cuda_std::launch::Descriptor = ::cuda_std::launch::Descriptor")?);
    let mut fields = tokens(&format!("name: {name:?}, bounds: {}, params: &", bounds.literal()))?;
    fields.extend([TokenTree::from(Group::new(Delimiter::Bracket, list))]);
    body.extend([TokenTree::from(Group::new(Delimiter::Brace, fields))]);
    body.extend(tokens(";")?);
    out.extend(tokens(&format!("#[cfg(not(target_arch = \"nvptx64\"))] impl ::cuda_std::launch::Kernel for {name}"))?);
    out.extend([TokenTree::from(Group::new(Delimiter::Brace, body))]);
    Ok(out)
}

/// The type of a generic kernel's name, and what implements `Family` for it.
fn family(visibility: &TokenStream, name: &str, params: &[Param], all: &[Instance]) -> Result<TokenStream, Error> {
    let mut out = host_type(visibility, name, &format!("The instances of the kernel `{name}`."))?;
    let mut list = String::new();
    for instance in all {
        let labels = &instance.labels;
        list += &format!("::cuda_std::launch::Instance::of::<{}>(&{labels:?}),", instance.name);
    }
    let mut body = args(params)?;
    body.extend(tokens(&format!("const INSTANCES: &'static [::cuda_std::launch::Instance<Self::Args>] = &[{list}];"))?);
    out.extend(tokens(&format!("#[cfg(not(target_arch = \"nvptx64\"))] impl ::cuda_std::launch::Family for {name}"))?);
    out.extend([TokenTree::from(Group::new(Delimiter::Brace, body))]);
    Ok(out)
}

/// A type without values, for the host alone.
fn host_type(visibility: &TokenStream, name: &str, doc: &str) -> Result<TokenStream, Error> {
    let attributes = "#[cfg(not(target_arch = \"nvptx64\"))] #[allow(non_camel_case_types)]";
    let mut out = tokens(&format!("#[doc = {doc:?}] {attributes}"))?;
    out.extend(visibility.clone());
    out.extend(tokens(&format!("enum {name} {{}}"))?);
    Ok(out)
}

/// `type Args = (...);`, with the types in their own spans.
fn args(params: &[Param]) -> Result<TokenStream, Error> {
    let mut types = TokenStream::new();
    for param in params {
        types.extend(param.ty.clone());
        types.extend(tokens(",")?);
    }
    let mut out = tokens("type Args =")?;
    out.extend([TokenTree::from(Group::new(Delimiter::Parenthesis, types))]);
    out.extend(tokens(";")?);
    Ok(out)
}

impl Bounds {
    fn parse(attributes: TokenStream) -> Result<(Bounds, Option<Instances>), Error> {
        let mut bounds = Bounds::default();
        let mut instances = None;
        let mut at = Span::call_site();
        for part in split(attributes, ',') {
            if let [TokenTree::Ident(key), TokenTree::Group(list)] = part.as_slice()
                && key.to_string() == "instances"
            {
                instances = Some(Instances::parse(list)?);
                continue;
            }
            let [TokenTree::Ident(key), equals, value] = part.as_slice() else {
                let span = part.first().map_or(at, TokenTree::span);
                return Err(Error::new(span, "expected `max_threads = 256`, `min_blocks = 2` or `max_regs = 128`"));
            };
            at = key.span();
            let number = value.to_string().replace('_', "").parse().ok().filter(|n| *n > 0);
            let number = number.filter(|_| is_punct(equals, '='));
            let number = number.ok_or_else(|| Error::new(value.span(), "expected a positive number"))?;
            let field = match key.to_string().as_str() {
                "max_threads" => &mut bounds.max_threads,
                "min_blocks" => &mut bounds.min_blocks,
                "max_regs" => &mut bounds.max_regs,
                other => return Err(Error::new(at, format!("a kernel has no bound `{other}`"))),
            };
            if field.replace(number).is_some() {
                return Err(Error::new(at, "given twice"));
            }
        }
        match bounds {
            Bounds { max_threads: Some(1025..), .. } => Err(Error::new(at, "a block has at most 1024 threads")),
            Bounds { max_threads: None, min_blocks: Some(_), .. } => {
                Err(Error::new(at, "`min_blocks` means something only beside `max_threads`"))
            }
            _ => Ok((bounds, instances)),
        }
    }

    fn named(&self) -> [(&'static str, Option<u32>); 3] {
        [("max_threads", self.max_threads), ("min_blocks", self.min_blocks), ("max_regs", self.max_regs)]
    }

    /// ` max_threads=256 min_blocks=2`, for the comment in the PTX.
    fn marker(&self) -> String {
        self.named().iter().filter_map(|(name, value)| value.map(|v| format!(" {name}={v}"))).collect()
    }

    /// The expression that makes them.
    fn literal(&self) -> String {
        let fields = self.named().map(|(name, value)| match value {
            Some(value) => format!("{name}: ::core::option::Option::Some({value})"),
            None => format!("{name}: ::core::option::Option::None"),
        });
        format!("::cuda_std::launch::Bounds {{ {} }}", fields.join(", "))
    }
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
        params.push(Param { name, ty: ty.iter().cloned().collect(), text: text(ty) });
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
