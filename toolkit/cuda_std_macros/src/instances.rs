//! `instances(T = [F16, Bf16], D = [64, 128])`: the kernels that a generic one stands for.

use proc_macro::{Delimiter, Group, Ident, TokenTree};

use crate::{Error, is_punct, split};

/// The values of each generic parameter, as written in the attribute.
pub struct Instances(Vec<(Ident, Vec<String>)>);

/// One kernel of a family.
pub struct Instance {
    /// Its entry: the family's name and the labels, such as `attention_f16_64`.
    pub name: String,
    /// What stands for the generic parameters, in order.
    pub values: Vec<String>,
    /// The values in lower case.
    pub labels: Vec<String>,
}

impl Instances {
    /// Reads the list that follows the word `instances`.
    pub fn parse(list: &Group) -> Result<Instances, Error> {
        let mut parameters = Vec::new();
        for part in split(list.stream(), ',') {
            let [TokenTree::Ident(name), equals, TokenTree::Group(values)] = part.as_slice() else {
                let span = part.first().map_or(list.span(), TokenTree::span);
                return Err(Error::new(span, "expected `T = [F16, Bf16]` or `D = [64, 128]`"));
            };
            if !is_punct(equals, '=') || values.delimiter() != Delimiter::Bracket {
                return Err(Error::new(equals.span(), "expected `= [...]`"));
            }
            let mut words = Vec::new();
            for value in split(values.stream(), ',') {
                match value.as_slice() {
                    [one @ (TokenTree::Ident(_) | TokenTree::Literal(_))] => words.push(one.to_string()),
                    _ => return Err(Error::new(values.span(), "a value is one word: the name of a type, or a number")),
                }
            }
            parameters.push((name.clone(), words));
        }
        Ok(Instances(parameters))
    }

    /// Every combination of the values, for a function of this name and these generic parameters.
    pub fn of(&self, function: &Ident, generics: &[TokenTree]) -> Result<Vec<Instance>, Error> {
        let declared = parameters(generics);
        let listed: Vec<_> = self.0.iter().map(|(name, _)| name.to_string()).collect();
        if declared != listed {
            let message = format!(
                "the function's parameters are <{}>, the instances' <{}>",
                declared.join(", "),
                listed.join(", ")
            );
            return Err(Error::new(function.span(), message));
        }
        let mut combinations = vec![Vec::new()];
        for (_, values) in &self.0 {
            let longer = |so_far: &Vec<String>| -> Vec<Vec<String>> {
                values.iter().map(|value| so_far.iter().chain([value]).cloned().collect()).collect()
            };
            combinations = combinations.iter().flat_map(longer).collect();
        }
        let instance = |values: Vec<String>| {
            let labels: Vec<_> = values.iter().map(|v| v.to_lowercase()).collect();
            Instance { name: format!("{function}_{}", labels.join("_")), values, labels }
        };
        Ok(combinations.into_iter().map(instance).collect())
    }
}

/// The names in `<T: Bound, const D: u32>`.
fn parameters(generics: &[TokenTree]) -> Vec<String> {
    let inside = generics.get(1..generics.len().saturating_sub(1)).unwrap_or_default();
    let mut names = Vec::new();
    for part in split(inside.iter().cloned().collect(), ',') {
        let words = part.iter().map(ToString::to_string).find(|word| word != "const");
        names.extend(words);
    }
    names
}
