//! The arguments of `#[kernel]`: launch bounds, the only target of the kernel, and whether a launch may begin early.

use proc_macro::{Span, TokenTree};

use crate::{Error, is_punct};

/// Launch bounds as written in the source. An unset bound means no limit.
#[derive(Clone, Default)]
pub struct BoundsAttribute {
    max_threads: Option<u32>,
    min_blocks: Option<u32>,
    max_regs: Option<u32>,
    /// The only target that has the kernel.
    arch: Option<String>,
    /// Whether the kernel waits for earlier launches, and where.
    dependent: Option<Wait>,
}

/// Where a kernel that may begin early waits for earlier launches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// At its beginning, before anything else.
    First,
    /// Later, where the kernel itself calls the wait.
    Itself,
}

/// Targets that a kernel can be restricted to. Later GPUs lack their special instructions.
const ARCHS: [&str; 1] = ["sm_90a"];

/// The target that supports the wait. Must match `cuda_std::launch::Descriptor::waits_in`.
const WAITS_IN: &str = "sm_90a";

impl BoundsAttribute {
    /// Parses the bounds among the parts of an attribute or of a list of instances. Missing bounds are taken from
    /// `others`.
    pub fn parse(parts: Vec<Vec<TokenTree>>, others: &BoundsAttribute) -> Result<BoundsAttribute, Error> {
        let mut bounds = BoundsAttribute::default();
        let mut at = Span::call_site();
        for part in parts {
            if let [TokenTree::Ident(key)] = part.as_slice()
                && key.to_string() == "dependent"
            {
                bounds.dependent = Some(Wait::First);
                continue;
            }
            let [TokenTree::Ident(key), equals, value] = part.as_slice() else {
                let span = part.first().map_or(at, TokenTree::span);
                return Err(Error::new(span, "expected `max_threads = 256`, `min_blocks = 2` or `max_regs = 128`"));
            };
            at = key.span();
            if key.to_string() == "dependent" {
                if !is_punct(equals, '=') || value.to_string() != "\"waits\"" {
                    return Err(Error::new(value.span(), "expected `dependent` or `dependent = \"waits\"`"));
                }
                bounds.dependent = Some(Wait::Itself);
                continue;
            }
            if key.to_string() == "arch" {
                let name = value.to_string().trim_matches('"').to_owned();
                if !is_punct(equals, '=') || !ARCHS.contains(&name.as_str()) {
                    return Err(Error::new(value.span(), "expected `arch = \"sm_90a\"`, the only supported value"));
                }
                bounds.arch = Some(name);
                continue;
            }
            let number = value.to_string().replace('_', "").parse().ok().filter(|n| *n > 0);
            let number = number.filter(|_| is_punct(equals, '='));
            let number = number.ok_or_else(|| Error::new(value.span(), "expected a positive number"))?;
            let field = match key.to_string().as_str() {
                "max_threads" => &mut bounds.max_threads,
                "min_blocks" => &mut bounds.min_blocks,
                "max_regs" => &mut bounds.max_regs,
                other => {
                    let message = format!(
                        "unknown bound `{other}`: expected `max_threads`, `min_blocks`, `max_regs`, `arch` or `dependent`"
                    );
                    return Err(Error::new(at, message));
                }
            };
            if field.replace(number).is_some() {
                return Err(Error::new(at, "this bound is set twice"));
            }
        }
        let bounds = BoundsAttribute {
            max_threads: bounds.max_threads.or(others.max_threads),
            min_blocks: bounds.min_blocks.or(others.min_blocks),
            max_regs: bounds.max_regs.or(others.max_regs),
            arch: bounds.arch.or_else(|| others.arch.clone()),
            dependent: bounds.dependent.or(others.dependent),
        };
        match bounds {
            BoundsAttribute { max_threads: Some(1025..), .. } => {
                Err(Error::new(at, "a block has at most 1024 threads"))
            }
            BoundsAttribute { max_threads: None, min_blocks: Some(_), .. } => {
                Err(Error::new(at, "`min_blocks` requires `max_threads`"))
            }
            _ => Ok(bounds),
        }
    }

    fn named(&self) -> [(&'static str, Option<u32>); 3] {
        [("max_threads", self.max_threads), ("min_blocks", self.min_blocks), ("max_regs", self.max_regs)]
    }

    /// Returns the bounds in the format of the PTX comment: ` max_threads=256 min_blocks=2`.
    pub fn marker(&self) -> String {
        self.named().iter().filter_map(|(name, value)| value.map(|v| format!(" {name}={v}"))).collect()
    }

    /// Returns the `cfg` condition under which the entry exists.
    pub fn condition(&self) -> String {
        match &self.arch {
            Some(arch) => format!("all(target_arch = \"nvptx64\", target_feature = {arch:?})"),
            None => "target_arch = \"nvptx64\"".to_owned(),
        }
    }

    /// Returns the statement at the beginning of an entry.
    pub fn beginning(&self) -> String {
        match self.dependent {
            Some(Wait::First) => {
                format!("#[cfg(target_feature = {WAITS_IN:?})] ::cuda_std::ptx::control::begin_dependent();")
            }
            Some(Wait::Itself) | None => String::new(),
        }
    }

    /// Returns the host expression that states whether a launch may begin early.
    pub fn dependent(&self) -> String {
        self.dependent.is_some().to_string()
    }

    /// Returns the host expression of the only target.
    pub fn arch(&self) -> String {
        match &self.arch {
            Some(arch) => format!("::core::option::Option::Some({arch:?})"),
            None => "::core::option::Option::None".to_owned(),
        }
    }

    /// Returns the host expression of the bounds.
    pub fn literal(&self) -> String {
        let fields = self.named().map(|(name, value)| match value {
            Some(value) => format!("{name}: ::core::option::Option::Some({value})"),
            None => format!("{name}: ::core::option::Option::None"),
        });
        format!("::cuda_std::launch::Bounds {{ {} }}", fields.join(", "))
    }
}
