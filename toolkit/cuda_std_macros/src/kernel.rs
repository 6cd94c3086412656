//! `#[kernel]`: generates the items for the device and for the host.

use proc_macro::{TokenStream, TokenTree};

use crate::bounds::BoundsAttribute;
use crate::function::{Function, parse_params};
use crate::host::Host;
use crate::instances::{Instances, KernelInstance};
use crate::{Error, split, tokens};

/// Expands `#[kernel(attributes)]` on a function.
pub fn expand(attributes: TokenStream, item: TokenStream) -> Result<TokenStream, Error> {
    let (lists, bounds): (Vec<_>, Vec<_>) = split(attributes, ',').into_iter().partition(|part| is_list(part));
    let bounds = BoundsAttribute::parse(bounds, &BoundsAttribute::default())?;
    let instances = Instances::parse(&lists, &bounds)?;
    let function = Function::parse(item)?;
    let host = Host::new(&function, parse_params(&function.params)?);
    if instances.is_empty() {
        if !function.generics.is_empty() {
            let message =
                "a generic kernel must list its instances: `#[kernel(instances(T = [F16, Bf16], D = [64, 128]))]`";
            return Err(Error::new(function.name.span(), message));
        }
        let mut out = tokens(&format!("#[cfg({})] #[unsafe(no_mangle)]", bounds.condition()))?;
        out.extend(function.head.clone());
        out.extend(function.entry(&function.name.to_string(), &host.params, &bounds.beginning(), None)?);
        out.extend(marker(&function.name.to_string(), &bounds)?);
        out.extend(tokens("#[cfg(not(target_arch = \"nvptx64\"))] #[allow(clippy::too_many_arguments)]")?);
        out.extend(function.declared("unsafe fn")?);
        out.extend(host.kernel(&bounds)?);
        return Ok(out);
    }
    let mut out = tokens("#[inline(always)] #[allow(clippy::too_many_arguments)]")?;
    out.extend(function.declared("unsafe fn")?);
    let instances = instances.kernels(&function.name, &function.generics)?;
    for instance in &instances {
        out.extend(entry(&function, &host, instance)?);
        out.extend(marker(&instance.name, &instance.bounds)?);
    }
    out.extend(host.family(&instances)?);
    Ok(out)
}

/// Returns whether a part of the attribute is `instances(...)`.
fn is_list(part: &[TokenTree]) -> bool {
    matches!(part, [TokenTree::Ident(key), TokenTree::Group(_)] if key.to_string() == "instances")
}

/// Generates the entry of an instance, which calls the generic function.
fn entry(function: &Function, host: &Host<'_>, instance: &KernelInstance) -> Result<TokenStream, Error> {
    let (name, generics) = (&function.name, instance.values.join(", "));
    let arguments: Vec<_> = host.params.iter().map(|p| p.name.as_str()).collect();
    let body = tokens(&format!(
        "/* SAFETY: the entry has the function's contract. */ unsafe {{ {name}::<{generics}>({}) }}",
        arguments.join(", ")
    ))?;
    let mut out = tokens(&format!(
        "#[doc = \"The instance of `{name}` for these parameters.\"] #[cfg({})] #[unsafe(no_mangle)]",
        instance.bounds.condition()
    ))?;
    out.extend(function.entry(&instance.name, &host.params, &instance.bounds.beginning(), Some(body))?);
    // The host build also checks that the instance can exist.
    out.extend(tokens(&format!(
        "#[cfg(not(target_arch = \"nvptx64\"))] const _: () = {{ let _ = {name}::<{generics}>; }};"
    ))?);
    Ok(out)
}

/// Generates the PTX comment that describes an entry. The builder reads it and adds the bounds to the entry.
fn marker(name: &str, bounds: &BoundsAttribute) -> Result<TokenStream, Error> {
    let marker = format!("//@kernel {name}{}", bounds.marker());
    tokens(&format!("#[cfg({})] ::core::arch::global_asm!({marker:?});", bounds.condition()))
}
