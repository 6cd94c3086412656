//! `instances(T = [F16, Bf16], D = [64, 128])`: the instances of a generic kernel.

use proc_macro::{Delimiter, Group, Ident, Span, TokenTree};

use crate::bounds::BoundsAttribute;
use crate::{Error, is_punct, split};

/// The lists of an attribute. Each list gives values to every generic parameter.
pub struct Instances(Vec<List>);

/// The values of each generic parameter in one `instances(...)`.
struct List {
    span: Span,
    parameters: Vec<(Ident, Vec<String>)>,
    /// The launch bounds of the list's kernels.
    bounds: BoundsAttribute,
}

/// A generic parameter of a kernel.
pub struct Generic {
    /// The parameter's name.
    pub name: String,
    /// Whether it is a number, `const D: u32`, instead of a type.
    pub is_const: bool,
}

/// One instance of a generic kernel.
pub struct KernelInstance {
    /// The entry's name: the generic kernel's name and the labels, such as `attention_f16_64`.
    pub name: String,
    /// The values of the generic parameters, in order.
    pub values: Vec<String>,
    /// The values in lower case.
    pub labels: Vec<String>,
    /// Its launch bounds.
    pub bounds: BoundsAttribute,
}

impl Instances {
    /// Parses the `instances(...)` parts of the attribute. `bounds` are the kernel's bounds, which a list may override.
    pub fn parse(parts: &[Vec<TokenTree>], bounds: &BoundsAttribute) -> Result<Instances, Error> {
        let groups = parts.iter().filter_map(|part| match part.as_slice() {
            [_, TokenTree::Group(list)] => Some(List::parse(list, bounds)),
            _ => None,
        });
        Ok(Instances(groups.collect::<Result<_, _>>()?))
    }

    /// Returns whether the attribute has no `instances(...)`.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns every combination of the values of each list, for a function with this name and these generic
    /// parameters.
    pub fn kernels(&self, function: &Ident, generics: &[TokenTree]) -> Result<Vec<KernelInstance>, Error> {
        let declared: Vec<_> = generic_parameters(generics)?.into_iter().map(|generic| generic.name).collect();
        let mut all: Vec<KernelInstance> = Vec::new();
        for list in &self.0 {
            for instance in list.kernels(function, &declared)? {
                if all.iter().any(|other| other.name == instance.name) {
                    return Err(Error::new(list.span, format!("the instance `{}` is listed twice", instance.name)));
                }
                all.push(instance);
            }
        }
        Ok(all)
    }
}

impl List {
    fn parse(list: &Group, bounds: &BoundsAttribute) -> Result<List, Error> {
        let is_values = |part: &Vec<TokenTree>| !matches!(part.as_slice(), [_, _, TokenTree::Literal(_)]);
        let (parts, other_bounds): (Vec<_>, Vec<_>) = split(list.stream(), ',').into_iter().partition(is_values);
        let mut parameters = Vec::new();
        for part in parts {
            let [TokenTree::Ident(name), equals, TokenTree::Group(values)] = part.as_slice() else {
                let span = part.first().map_or(list.span(), TokenTree::span);
                return Err(Error::new(span, "expected `T = [F16, Bf16]`, `D = [64, 128]` or `min_blocks = 2`"));
            };
            if !is_punct(equals, '=') || values.delimiter() != Delimiter::Bracket {
                return Err(Error::new(equals.span(), "expected `= [...]`"));
            }
            let mut words = Vec::new();
            for value in split(values.stream(), ',') {
                match value.as_slice() {
                    [one @ (TokenTree::Ident(_) | TokenTree::Literal(_))] => words.push(one.to_string()),
                    _ => return Err(Error::new(values.span(), "a value must be the name of a type or a number")),
                }
            }
            parameters.push((name.clone(), words));
        }
        Ok(List { span: list.span(), parameters, bounds: BoundsAttribute::parse(other_bounds, bounds)? })
    }

    fn kernels(&self, function: &Ident, declared: &[String]) -> Result<Vec<KernelInstance>, Error> {
        let listed: Vec<_> = self.parameters.iter().map(|(name, _)| name.to_string()).collect();
        if declared != listed {
            let (declared, listed) = (declared.join(", "), listed.join(", "));
            let message = format!("the function's parameters are <{declared}>, but the instances have <{listed}>");
            return Err(Error::new(function.span(), message));
        }
        let mut combinations = vec![Vec::new()];
        for (_, values) in &self.parameters {
            let longer = |so_far: &Vec<String>| -> Vec<Vec<String>> {
                values.iter().map(|value| so_far.iter().chain([value]).cloned().collect()).collect()
            };
            combinations = combinations.iter().flat_map(longer).collect();
        }
        let instance = |values: Vec<String>| {
            let labels: Vec<_> = values.iter().map(|v| v.to_lowercase()).collect();
            KernelInstance {
                name: format!("{function}_{}", labels.join("_")),
                values,
                labels,
                bounds: self.bounds.clone(),
            }
        };
        Ok(combinations.into_iter().map(instance).collect())
    }
}

/// Parses the parameters in `<T: Bound, const D: u32>`.
pub fn generic_parameters(generics: &[TokenTree]) -> Result<Vec<Generic>, Error> {
    let inside = generics.get(1..generics.len().saturating_sub(1)).unwrap_or_default();
    let mut all = Vec::new();
    for part in split(inside.iter().cloned().collect(), ',') {
        let words: Vec<_> = part.iter().map(ToString::to_string).collect();
        match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["const", name, ":", "u32"] => all.push(Generic { name: (*name).to_owned(), is_const: true }),
            ["const", ..] => return Err(Error::new(part[0].span(), "a const parameter of a kernel must be a `u32`")),
            [name, ..] => all.push(Generic { name: (*name).to_owned(), is_const: false }),
            [] => {}
        }
    }
    Ok(all)
}
