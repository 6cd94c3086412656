//! Loads, stores, copies from global to shared memory, and conversions of addresses.

use crate::case::{Case, Expect, NUMBERS};
use crate::types::Type;

/// Types of loads and stores, by LLVM's names and by the older names.
const ELEMENTS: [Type; 13] = [
    Type::B8,
    Type::U8,
    Type::S8,
    Type::B16,
    Type::U16,
    Type::S16,
    Type::B32,
    Type::U32,
    Type::S32,
    Type::F32,
    Type::B64,
    Type::U64,
    Type::F64,
];

/// Returns the 16 bytes that two operands form in memory.
fn memory(operands: &[u64]) -> u128 {
    u128::from(operands[0]) | u128::from(operands[1]) << 64
}

/// The place of a thread's own data: the name of the space, the address, and the instructions that store the operands
/// there.
struct Place {
    space: &'static str,
    address: &'static str,
    fill: &'static str,
}

/// The operands in global memory, and copies of them in shared memory.
const SOURCES: [Place; 4] = [
    Place { space: ".global", address: "%in", fill: "" },
    Place { space: "", address: "%in", fill: "" },
    Place { space: ".shared", address: "%tile", fill: "st.shared.v2.b64 [%tile], {%a, %b};" },
    Place { space: "", address: "%generic", fill: "st.shared.v2.b64 [%tile], {%a, %b};" },
];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for vector in [1, 2, 4] {
        for ty in ELEMENTS.into_iter().filter(|ty| ty.bits() * vector <= 128) {
            for place in SOURCES {
                cases.extend(["", ".volatile"].map(|hint| load(&place, "", hint, ty, vector)));
            }
            for hint in [".ca", ".cg", ".cs", ".lu", ".nc"] {
                cases.push(load(&SOURCES[0], hint, "", ty, vector));
            }
            for place in ["%out", "%tile", "%generic"] {
                cases.extend(["", ".volatile"].map(|hint| store(place, hint, "", ty, vector)));
            }
            cases.extend([".wb", ".cg", ".cs", ".wt"].map(|hint| store("%out", "", hint, ty, vector)));
        }
    }
    for ty in [Type::B32, Type::U32, Type::B64, Type::U64] {
        cases.extend(
            [".relaxed.gpu", ".acquire.gpu", ".relaxed.sys", ".acquire.sys"]
                .map(|order| load(&SOURCES[0], "", order, ty, 1)),
        );
        cases.extend(
            [".relaxed.gpu", ".release.gpu", ".relaxed.sys", ".release.sys"]
                .map(|order| store("%out", order, "", ty, 1)),
        );
    }
    cases.extend(parameters());
    cases.extend(copies());
    cases.extend(addresses());
    cases.extend(ordering());
    cases
}

fn list(names: &[&str]) -> String {
    if let [one] = names { (*one).to_owned() } else { format!("{{{}}}", names.join(", ")) }
}

/// Creates a case of a load. `order` precedes the space in the opcode, and `hint` follows it.
fn load(place: &Place, hint: &str, order: &str, ty: Type, vector: u32) -> Case {
    let names = &["%x", "%y", "%z", "%w"][..vector as usize];
    let lengths = if vector == 1 { String::new() } else { format!(".v{vector}") };
    let Place { space, address, fill } = place;
    let line = format!("ld{order}{space}{hint}{lengths}.{ty} {}, [{address}];", list(names));
    let outputs = vec![ty; vector as usize];
    Case::new(line, &[Type::B64; 2], &outputs, move |operands, thread| {
        let bytes = memory(&operands[thread]);
        let element = |i: u32| {
            let value = ty.integer((bytes >> (i * ty.bits())) as u64);
            Expect::Bits(value as u64 & if ty.bits() == 8 { 0xffff } else { ty.mask() })
        };
        (0..vector).map(element).collect()
    })
    .before(*fill)
}

fn store(address: &str, order: &str, hint: &str, ty: Type, vector: u32) -> Case {
    let names = &["%a", "%b", "%c", "%e"][..vector as usize];
    let lengths = if vector == 1 { String::new() } else { format!(".v{vector}") };
    let space = match address {
        "%out" => ".global",
        "%tile" => ".shared",
        _ => "",
    };
    let line = format!("st{order}{space}{hint}{lengths}.{ty} [{address}], {};", list(names));
    let inputs = vec![ty; vector as usize];
    Case::new(line, &inputs, &[Type::B64; 2], move |operands, thread| {
        let elements = operands[thread].iter().enumerate();
        let bytes = elements.fold(u128::MAX, |bytes, (i, value)| {
            let at = i as u32 * ty.bits();
            bytes & !(u128::from(ty.mask()) << at) | u128::from(value & ty.mask()) << at
        });
        vec![Expect::Bits(bytes as u64), Expect::Bits((bytes >> 64) as u64)]
    })
    .before(format!("mov.b64 %d0, -1;\nst{space}.v2.b64 [{address}], {{%d0, %d0}};"))
    .after(format!("ld{space}.v2.b64 {{%x, %y}}, [{address}];"))
}

/// Loads of the kernel's parameters.
fn parameters() -> Vec<Case> {
    let parameter = |name: &str, ty: Type, value: u64| {
        Case::lanes(format!("ld.param.{ty} %x, [{name}];"), &[Type::B32], ty, move |_| Expect::Bits(value & ty.mask()))
    };
    let narrow = [Type::B16, Type::U16, Type::B32, Type::U32, Type::S32, Type::F32];
    let narrow = narrow.map(|ty| parameter("number", ty, NUMBERS.0.into()));
    let wide = [Type::B64, Type::U64, Type::S64, Type::F64].map(|ty| parameter("wide", ty, NUMBERS.1));
    let pair = Case::new("ld.param.v2.b32 {%x, %y}, [wide];", &[Type::B32], &[Type::B32; 2], |_, _| {
        vec![Expect::Bits(NUMBERS.1 & 0xffff_ffff), Expect::Bits(NUMBERS.1 >> 32)]
    });
    narrow.into_iter().chain(wide).chain([pair]).collect()
}

/// `cp.async`, which fills the bytes that it does not copy with zeros.
fn copies() -> Vec<Case> {
    let copy = |line: &str, bytes: u32, wait: &str| {
        let case = Case::new(line, &[Type::B64; 2], &[Type::B64; 2], move |operands, thread| {
            let mask = if bytes == 0 { 0 } else { u128::MAX >> (128 - 8 * bytes) };
            let kept = memory(&operands[thread]) & mask;
            vec![Expect::Bits(kept as u64), Expect::Bits((kept >> 64) as u64)]
        });
        case.after(format!("{wait}\nld.shared.v2.b64 {{%x, %y}}, [%tile];"))
            .before("mov.b64 %d0, 0;\nst.shared.v2.b64 [%tile], {%d0, %d0};\nmov.b32 %r0, 5;\nmov.b32 %r1, 0;")
    };
    let wait = "cp.async.wait_all;";
    let grouped = "cp.async.commit_group;\ncp.async.wait_group 0;";
    let mut cases = Vec::new();
    for hint in ["", ".L2::128B"] {
        for (cache, bytes) in [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)] {
            let line = |count: &str| format!("cp.async.{cache}.shared.global{hint} [%tile], [%in], {bytes}{count};");
            cases.push(copy(&line(""), bytes, wait));
            cases.push(copy(&line(", %r0"), bytes.min(5), wait));
            cases.push(copy(&line(", %r1"), 0, grouped));
        }
    }
    let copying = "cp.async.ca.shared.global [%tile], [%in], 16;\n";
    let group = |line: &str, before: &str, after: &str| copy(line, 16, after).before(format!("{copying}{before}"));
    cases.push(group("cp.async.commit_group;", "", "cp.async.wait_group 0;"));
    cases.push(group("cp.async.wait_all;", "", ""));
    // An empty younger group may still be pending.
    cases.push(group("cp.async.wait_group 1;", "cp.async.commit_group;\ncp.async.commit_group;", ""));
    cases
}

/// `cvta`: conversions between generic addresses and addresses of a space.
fn addresses() -> Vec<Case> {
    let identity = |line: &str, before: &str, after: &str| {
        Case::lanes(line, &[Type::B64], Type::B64, |v| Expect::Bits(v[0])).before(before).after(after)
    };
    let share = "cvt.u64.u32 %d1, %tile;\nst.shared.b64 [%tile], %a;";
    vec![
        identity("cvta.global.u64 %d0, %in;", "", "ld.b64 %x, [%d0];"),
        identity("cvta.to.global.u64 %d0, %in;", "", "ld.global.b64 %x, [%d0];"),
        identity("cvta.shared.u64 %d0, %d1;", share, "ld.b64 %x, [%d0];"),
        identity("cvta.to.shared.u64 %d0, %generic;", share, "ld.shared.b64 %x, [%d0];"),
    ]
}

/// Fences and prefetches change nothing that the issuing thread sees.
fn ordering() -> Vec<Case> {
    let fences = ["membar.cta;", "membar.gl;", "membar.sys;", "fence.acq_rel.gpu;", "fence.acq_rel.cta;"];
    let more = ["fence.acq_rel.sys;", "fence.sc.gpu;", "fence.sc.cta;", "fence.sc.sys;", "prefetch.global.L2 [%in];"];
    let case = |line: &str| {
        Case::lanes(line, &[Type::B64], Type::B64, |v| Expect::Bits(v[0]))
            .before("st.global.b64 [%out], %a;")
            .after("ld.global.b64 %x, [%out];")
    };
    fences.into_iter().chain(more).map(case).collect()
}
