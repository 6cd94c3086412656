//! Linking. The result is PTX where a driver would produce a cubin, and it can be loaded like one.

use super::argument::{Out, TextArgument, array};
use super::functions::functions;
use super::modules::JitOptions;
use crate::driver::image::CodeImage;
use crate::driver::process::{Handle, create_in_current, with};
use crate::driver::result_code::{Result, ResultCode};
use crate::fault::{Fault, FaultKind};
use std::ffi::c_void;

/// Supported input kinds, by CUDA's numbers: cubin (only the result of an earlier link), PTX and fatbin.
const INPUTS: std::ops::RangeInclusive<u32> = 0..=2;

fn add(state: Handle, kind: u32, image: Result<CodeImage>) -> Result<()> {
    with(state, |context, state| {
        let options = context.device_options.clone();
        let linker = context.links.get_mut(&state).ok_or(ResultCode::InvalidHandle)?;
        let added = if INPUTS.contains(&kind) {
            linker.add(&image?, &options)
        } else {
            let why = "objects and libraries hold machine code (SASS), which the emulator does not execute";
            Err((ResultCode::NoBinary, why.to_owned()))
        };
        added.map_err(|(code, why)| {
            context.record_refusal(Fault::of_call(FaultKind::Launch, "link", why));
            code
        })
    })
}

functions! { link_functions($)
    fn cuLinkCreate_v2(count: u32, names: *const u32, values: *const *mut c_void, state: Out<Handle>) {
        // SAFETY: the caller guarantees that both arrays have `count` elements.
        unsafe { JitOptions::new(count, names, values) }?;
        state.put(create_in_current(|context| {
            context.healthy()?;
            let id = context.id();
            context.links.insert(id, Default::default());
            Ok(id)
        })?)
    }

    fn cuLinkAddData_v2(
        state: Handle, kind: u32, data: *const u8, bytes: usize, _name: *const c_void, _count: u32, _names: *const u32,
        _values: *const *mut c_void,
    ) {
        // SAFETY: the caller guarantees that `data` has this many bytes.
        add(state, kind, CodeImage::from_bytes(&unsafe { array(data, bytes) }?))
    }

    fn cuLinkAddFile_v2(
        state: Handle, kind: u32, file: TextArgument, _count: u32, _names: *const u32, _values: *const *mut c_void,
    ) {
        add(state, kind, CodeImage::from_file(file.get()?))
    }

    fn cuLinkComplete(state: Handle, cubin: Out<*const u8>, bytes: Out<usize>) {
        let (start, size) = with(state, |context, state| {
            let options = context.device_options.clone();
            let linker = context.links.get_mut(&state).ok_or(ResultCode::InvalidHandle)?;
            let linked = linker.complete(&options).map(|linked| (linked.as_ptr(), linked.len()));
            linked.map_err(|(code, why)| {
                context.record_refusal(Fault::of_call(FaultKind::Launch, "link", why));
                code
            })
        })?;
        cubin.put(start)?;
        if bytes.is_null() { Ok(()) } else { bytes.put(size) }
    }

    fn cuLinkDestroy(state: Handle) {
        with(state, |context, state| context.links.remove(&state).map(|_| ()).ok_or(ResultCode::InvalidHandle))
    }
}
