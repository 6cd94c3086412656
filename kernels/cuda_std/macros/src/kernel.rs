//! `#[kernel]`.

use proc_macro::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};

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
    params: Group,
    body: TokenTree,
}

pub fn expand(attributes: TokenStream, item: TokenStream) -> Result<TokenStream, Error> {
    let bounds = Bounds::parse(attributes)?;
    let function = Function::parse(item)?;
    let params = parse_params(&function.params)?;
    let name = function.name.to_string();

    let mut out = tokens("#[cfg(target_arch = \"nvptx64\")] #[unsafe(no_mangle)]")?;
    out.extend(function.head.clone());
    out.extend(function.visibility.clone());
    out.extend(tokens("unsafe extern \"ptx-kernel\" fn")?);
    out.extend(function.rest());
    // The builder reads this line back, adds the bounds to the entry, and leaves it in the PTX as its description.
    let marker = format!("//@kernel {name}{}", bounds.marker());
    out.extend(tokens(&format!("#[cfg(target_arch = \"nvptx64\")] ::core::arch::global_asm!({marker:?});"))?);

    out.extend(tokens("#[cfg(not(target_arch = \"nvptx64\"))] #[allow(clippy::too_many_arguments)]")?);
    out.extend(function.head.clone());
    out.extend(function.visibility.clone());
    out.extend(tokens("unsafe fn")?);
    out.extend(function.rest());

    out.extend(tokens(&format!(
        "#[doc = \"Launches of the kernel `{name}`: the types of its arguments, and its descriptor.\"]
         #[cfg(not(target_arch = \"nvptx64\"))] #[allow(non_camel_case_types)]"
    ))?);
    out.extend(function.visibility.clone());
    out.extend(tokens("enum")?);
    out.extend(TokenStream::from(TokenTree::from(function.name.clone())));
    out.extend(tokens("{}")?);
    out.extend(implementation(&name, &params, &bounds)?);
    Ok(out)
}

/// `impl Kernel for name`, with the argument types in their own spans.
fn implementation(name: &str, params: &[Param], bounds: &Bounds) -> Result<TokenStream, Error> {
    let mut args = TokenStream::new();
    let mut list = TokenStream::new();
    for Param { name, ty, text } in params {
        args.extend(ty.clone());
        args.extend(tokens(",")?);
        list.extend(tokens("::cuda_std::launch::Param::of::<")?);
        list.extend(ty.clone());
        list.extend(tokens(&format!(">({name:?}, {text:?}),"))?);
    }
    let mut body = tokens("type Args =")?;
    body.extend([TokenTree::from(Group::new(Delimiter::Parenthesis, args))]);
    body.extend(tokens("; const DESCRIPTOR: ::cuda_std::launch::Descriptor = ::cuda_std::launch::Descriptor")?);
    let mut fields = tokens(&format!("name: {name:?}, bounds: {}, params: &", bounds.literal()))?;
    fields.extend([TokenTree::from(Group::new(Delimiter::Bracket, list))]);
    body.extend([TokenTree::from(Group::new(Delimiter::Brace, fields))]);
    body.extend(tokens(";")?);
    let mut out =
        tokens(&format!("#[cfg(not(target_arch = \"nvptx64\"))] impl ::cuda_std::launch::Kernel for {name}"))?;
    out.extend([TokenTree::from(Group::new(Delimiter::Brace, body))]);
    Ok(out)
}

impl Bounds {
    fn parse(attributes: TokenStream) -> Result<Bounds, Error> {
        let mut bounds = Bounds::default();
        let mut at = Span::call_site();
        for part in split(attributes, ',') {
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
            _ => Ok(bounds),
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
        let params = match tokens.next() {
            Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Parenthesis => g,
            other => return Err(Error::new(span(other), "a kernel has a name of its own, and cannot be generic")),
        };
        match tokens.next() {
            Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Brace => {
                Ok(Function { head, visibility, name, params, body: g.into() })
            }
            other => Err(Error::new(span(other), "a kernel returns nothing, and has no `where`")),
        }
    }

    /// From the name on.
    fn rest(&self) -> TokenStream {
        TokenStream::from_iter([self.name.clone().into(), self.params.clone().into(), self.body.clone()])
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
