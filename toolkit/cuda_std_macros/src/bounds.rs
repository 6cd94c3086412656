//! The launch bounds of a kernel, the target that it is for, and whether it may begin early, as its attribute gives them.

use proc_macro::{Span, TokenTree};

use crate::{Error, is_punct};

/// Launch bounds as written; what is not given is not limited.
#[derive(Clone, Default)]
pub struct BoundsAttribute {
    max_threads: Option<u32>,
    min_blocks: Option<u32>,
    max_regs: Option<u32>,
    /// The one target that the kernel exists for.
    arch: Option<String>,
    /// Whether it waits for the launches ahead, from its beginning on or later.
    dependent: Option<Wait>,
}

/// Where a kernel that may begin early waits for the launches ahead.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Before all else.
    First,
    /// Where it says so itself.
    Itself,
}

/// Targets that a kernel can be for alone: what they have is in no later GPU.
const ARCHS: [&str; 1] = ["sm_90a"];

/// The target for which there is a wait, as `cuda_std::launch::Descriptor::waits_in` says.
const WAITS_IN: &str = "sm_90a";

impl BoundsAttribute {
    /// Reads the parts of an attribute, or of a list of instances, that are bounds. What they don't give is as in `others`.
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
                    return Err(Error::new(
                        value.span(),
                        "expected `arch = \"sm_90a\"`: there is no other such target",
                    ));
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
                        "a kernel has no bound `{other}`: there are `max_threads`, `min_blocks`, `max_regs`, `arch` and `dependent`"
                    );
                    return Err(Error::new(at, message));
                }
            };
            if field.replace(number).is_some() {
                return Err(Error::new(at, "given twice"));
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
                Err(Error::new(at, "`min_blocks` means something only beside `max_threads`"))
            }
            _ => Ok(bounds),
        }
    }

    fn named(&self) -> [(&'static str, Option<u32>); 3] {
        [("max_threads", self.max_threads), ("min_blocks", self.min_blocks), ("max_regs", self.max_regs)]
    }

    /// The bounds as the comment in the PTX has them: ` max_threads=256 min_blocks=2`.
    pub fn marker(&self) -> String {
        self.named().iter().filter_map(|(name, value)| value.map(|v| format!(" {name}={v}"))).collect()
    }

    /// The condition under which there is an entry.
    pub fn condition(&self) -> String {
        match &self.arch {
            Some(arch) => format!("all(target_arch = \"nvptx64\", target_feature = {arch:?})"),
            None => "target_arch = \"nvptx64\"".to_owned(),
        }
    }

    /// What comes before all else in an entry.
    pub fn beginning(&self) -> String {
        match self.dependent {
            Some(Wait::First) => {
                format!("#[cfg(target_feature = {WAITS_IN:?})] ::cuda_std::ptx::control::begin_dependent();")
            }
            Some(Wait::Itself) | None => String::new(),
        }
    }

    /// The expression that says on the host whether it may begin early.
    pub fn dependent(&self) -> String {
        self.dependent.is_some().to_string()
    }

    /// The expression that makes the target on the host.
    pub fn arch(&self) -> String {
        match &self.arch {
            Some(arch) => format!("::core::option::Option::Some({arch:?})"),
            None => "::core::option::Option::None".to_owned(),
        }
    }

    /// The expression that makes the bounds on the host.
    pub fn literal(&self) -> String {
        let fields = self.named().map(|(name, value)| match value {
            Some(value) => format!("{name}: ::core::option::Option::Some({value})"),
            None => format!("{name}: ::core::option::Option::None"),
        });
        format!("::cuda_std::launch::Bounds {{ {} }}", fields.join(", "))
    }
}
