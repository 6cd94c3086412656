//! An unsupported form affects only the kernels that use it.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

#[allow(dead_code, reason = "these tests need one device only")]
mod host;

use emulator::{FaultKind, PtxModule, driver};
use host::Device;

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";
const GOOD: &str = ".visible .entry good(.param .u64 out) {
    .reg .b64 %d; .reg .b32 %r;
    ld.param.u64 %d, [out]; mov.u32 %r, %tid.x; mad.wide.u32 %d, %r, 4, %d; st.global.u32 [%d], %r; ret; }\n";

#[test]
fn only_kernels_with_unknown_forms_are_refused() {
    let device = Device::new(0);
    let bad = ".visible .entry bad(.param .u64 out)\n{\ntex.2d.v4.f32.s32 {a}, [b];\nret;\n}\n";
    let text = format!("{HEAD}{bad}{GOOD}");
    let (good, bad) = (device.kernel(&text, "good"), device.kernel(&text, "bad"));
    let out = device.zeros(128);
    assert_eq!(device.try_launch(&bad, &[out], &[8]), 801);
    let fault = driver::take_fault().unwrap();
    assert_eq!((fault.kind, fault.ptx_line), (FaultKind::Unsupported, 6));
    assert!(fault.to_string().contains("kernel `bad`: `tex.2d.v4.f32.s32` in `bad`"), "{fault}");
    assert!(fault.to_string().ends_with("PTX line 6"), "{fault}");
    // The context stays usable.
    device.launch(&good, &[out], &[8]);
    assert_eq!(device.words(out, 32).unwrap(), (0..32).collect::<Vec<u32>>());
}

#[test]
fn unknown_directives_are_refused_with_their_function() {
    for (inside, line, named) in [
        (".visible .entry bad() .frobnicated 3, 4\n{ ret; }\n", 4, "`.frobnicated` in `bad`"),
        (".visible .entry bad()\n{\n.reg .b128 %q<3>; ret; }\n", 6, "`.reg .b128` in `bad`"),
        (".visible .entry bad()\n{ .frobnicate 7, 8; ret; }\n", 5, "`.frobnicate` in `bad`"),
        (".func bad() .odd\n{ ret; }\n.visible .entry caller() { call bad, (); ret; }\n", 4, "`.odd` in `bad`"),
    ] {
        let module = PtxModule::parse(&format!("{HEAD}{inside}{GOOD}")).unwrap();
        assert!(module.entry("good").unwrap().check().is_ok(), "{inside}");
        let other = module.entries().iter().find(|entry| entry.name() != "good").unwrap();
        let error = other.check().unwrap_err();
        assert_eq!((error.line, error.message.contains(named)), (line, true), "{error}");
    }
}
