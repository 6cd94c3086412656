//! The host's part of a kernel: a struct of its arguments, and the trait impls that turn it into calls.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

use crate::bounds::BoundsAttribute;
use crate::function::{Function, FunctionParam};
use crate::instances::{Generic, KernelInstance, generic_parameters};
use crate::{Error, is_punct, tokens};

/// All generated items are compiled only for the host.
const HOST: &str = "#[cfg(not(target_arch = \"nvptx64\"))]";

/// `cuda_std::launch::MAX_TENSORS`.
const MOST_TENSORS: usize = 3;

/// Generates the host's items for a kernel.
pub struct Host<'a> {
    function: &'a Function,
    /// The parameters in order.
    pub params: Vec<FunctionParam>,
}

impl<'a> Host<'a> {
    pub fn new(function: &'a Function, params: Vec<FunctionParam>) -> Self {
        Self { function, params }
    }

    /// Generates the arguments of a kernel with a single entry.
    pub fn kernel(&self, bounds: &BoundsAttribute) -> Result<TokenStream, Error> {
        let name = self.function.name.to_string();
        let mut out = self.args(&format!("The arguments of the kernel `{name}`."))?;
        let descriptor = self.descriptor(&name, &[], bounds);
        out.extend(tokens(&format!("{HOST} impl ::cuda_std::launch::Kernel for {name} {{ {descriptor} }}"))?);
        Ok(out)
    }

    /// Generates the arguments of a generic kernel, with all its instances.
    pub fn family(&self, instances: &[KernelInstance]) -> Result<TokenStream, Error> {
        let name = self.function.name.to_string();
        let generics = generic_parameters(&self.function.generics)?;
        let mut out = self.args(&format!("The arguments of every instance of the kernel `{name}`."))?;
        let mut list = String::new();
        for instance in instances {
            let values: Vec<_> = instance.values.iter().map(String::as_str).collect();
            let parameters = key(&generics, &values);
            let descriptor = self.descriptor(&instance.name, &instance.labels, &instance.bounds);
            out.extend(tokens(&format!(
                "{HOST} impl ::cuda_std::launch::Instance<{parameters}> for {name} {{ {descriptor} }}"
            ))?);
            list += &format!("&<{name} as ::cuda_std::launch::Instance<{parameters}>>::DESCRIPTOR,");
        }
        let declared: Vec<_> = generics
            .iter()
            .map(|g| if g.is_const { format!("const {}: u32", g.name) } else { g.name.clone() })
            .collect();
        let names: Vec<_> = generics.iter().map(|generic| generic.name.as_str()).collect();
        let (declared, parameters) = (declared.join(", "), key(&generics, &names));
        let visibility = &self.function.visibility;
        out.extend(tokens(&format!(
            "{HOST} impl ::cuda_std::launch::Family for {name} {{
                const INSTANCES: &'static [&'static ::cuda_std::launch::Descriptor] = &[{list}];
            }}
            {HOST} impl {name} {{
                #[doc = \"Returns a call of the instance for these parameters, with these arguments.\"]
                #[allow(dead_code)]
                {visibility} fn instance<{declared}>(self) -> ::cuda_std::launch::KernelCall
                where
                    Self: ::cuda_std::launch::Instance<{parameters}>,
                {{
                    ::cuda_std::launch::KernelCall::instance::<Self, {parameters}>(self)
                }}
            }}"
        ))?);
        Ok(out)
    }

    /// Generates the struct with the kernel's name and a field for each parameter.
    fn args(&self, doc: &str) -> Result<TokenStream, Error> {
        let (name, visibility) = (&self.function.name, &self.function.visibility);
        let mut fields = TokenStream::new();
        let (mut params, mut bits) = (TokenStream::new(), String::new());
        let mut tensors = Vec::new();
        for (i, param) in self.params.iter().enumerate() {
            let FunctionParam { name, text, .. } = param;
            let ty = if param.is_tensor() { tokens("::cuda_std::launch::TensorTile")? } else { on_host(&param.ty)? };
            fields.extend(tokens(&format!("#[doc = \"The kernel's `{name}`: `{text}`.\"]"))?);
            fields.extend(visibility.clone());
            fields.extend(tokens(&format!("{name}:"))?);
            fields.extend(ty.clone());
            fields.extend(tokens(",")?);
            if param.is_tensor() {
                params.extend(tokens(&format!("::cuda_std::launch::Param::tensor({name:?}, {text:?}),"))?);
                bits += &format!("bits[{i}] = {};", tensors.len());
                tensors.push(format!("::core::option::Option::Some(self.{name})"));
                continue;
            }
            params.extend(tokens("::cuda_std::launch::Param::of::<")?);
            params.extend(ty);
            params.extend(tokens(&format!(">({name:?}, {text:?}),"))?);
            bits += &format!("bits[{i}] = ::cuda_std::launch::Argument::bits(self.{name});");
        }
        if tensors.len() > MOST_TENSORS {
            return Err(Error::new(name.span(), format!("a kernel can have at most {MOST_TENSORS} tensors")));
        }
        tensors.resize(MOST_TENSORS, "::core::option::Option::None".to_owned());
        let mut out =
            tokens(&format!("#[doc = {doc:?}] {HOST} #[allow(non_camel_case_types)] #[derive(Clone, Copy, Debug)]"))?;
        out.extend(visibility.clone());
        out.extend(tokens(&format!("struct {name}"))?);
        out.extend([braced(fields)]);

        let mut body = tokens("const PARAMS: &'static [::cuda_std::launch::Param] = &")?;
        body.extend([TokenTree::from(Group::new(Delimiter::Bracket, params))]);
        body.extend(tokens(&format!(
            "; #[allow(unused_mut)]
            fn bits(self) -> [u64; ::cuda_std::launch::MAX_PARAMS] {{
                let mut bits = [0; ::cuda_std::launch::MAX_PARAMS];
                {bits}
                bits
            }}
            fn tensors(self) -> [::core::option::Option<::cuda_std::launch::TensorTile>; ::cuda_std::launch::MAX_TENSORS] {{
                [{}]
            }}",
            tensors.join(", ")
        ))?);
        out.extend(tokens(&format!("{HOST} impl ::cuda_std::launch::Args for {name}"))?);
        out.extend([braced(body)]);
        Ok(out)
    }

    /// Generates the constant that describes an entry.
    fn descriptor(&self, entry: &str, labels: &[String], bounds: &BoundsAttribute) -> String {
        format!(
            "const DESCRIPTOR: ::cuda_std::launch::Descriptor = ::cuda_std::launch::Descriptor {{
                name: {entry:?},
                labels: &{labels:?},
                params: <Self as ::cuda_std::launch::Args>::PARAMS,
                bounds: {},
                arch: {},
                dependent: {},
            }};",
            bounds.literal(),
            bounds.arch(),
            bounds.dependent()
        )
    }
}

/// Returns the type that identifies an instance: `(F16, Const<64>,)`.
fn key(generics: &[Generic], values: &[&str]) -> String {
    let part = |(generic, value): (&Generic, &&str)| {
        if generic.is_const { format!("::cuda_std::launch::Const<{value}>,") } else { format!("{value},") }
    };
    format!("({})", generics.iter().zip(values).map(part).collect::<String>())
}

/// Returns the host's type for a parameter: a device address for a pointer, and the same type otherwise.
fn on_host(ty: &[TokenTree]) -> Result<TokenStream, Error> {
    let pointer = match ty {
        [reference, ..] if is_punct(reference, '&') => {
            let message = "`&CuTensorMap` is the only reference that a kernel can take: pass a pointer, such as `*const f32`, and the number of elements";
            return Err(Error::new(reference.span(), message));
        }
        // A type that was passed through a `macro_rules` macro.
        [TokenTree::Group(whole)] if whole.delimiter() == Delimiter::None => {
            return on_host(&whole.stream().into_iter().collect::<Vec<_>>());
        }
        [star, TokenTree::Ident(word), target @ ..] if is_punct(star, '*') => match word.to_string().as_str() {
            "mut" => Some(("DevicePtrMut", target)),
            _ => Some(("DevicePtr", target)),
        },
        _ => None,
    };
    let Some((pointer, target)) = pointer else { return Ok(ty.iter().cloned().collect()) };
    let mut out = tokens(&format!("::cuda_std::launch::{pointer}<"))?;
    out.extend(target.iter().cloned());
    out.extend(tokens(">")?);
    Ok(out)
}

fn braced(inside: TokenStream) -> TokenTree {
    Group::new(Delimiter::Brace, inside).into()
}
