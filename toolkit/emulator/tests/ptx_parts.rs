//! `PtxParts`: finding ordering instructions in PTX, and removing one of them from the text.

use emulator::{ORDERING, PtxParts};

const PTX: &str = r#"
.version 8.0
.target sm_90a
	.file	1 "./kernels/src/first.rs"
	.file	2 "/somewhere/else/core.rs"
.visible .entry one(
	.param .u64 one_param_0
)
{
	.loc	1 12 9
	bar.sync 	0;
	.loc	2 99 1
	@%p1 bar.sync 	1, 128;
	.loc	1 0 5, function_name $L__info_string1, inlined_at 1 40 3
	cp.async.commit_group;
{
$again:
	mbarrier.try_wait.parity.shared::cta.b64 	%p2, [%r1], %r2;
	@!%p2 bra 	$again;
}
	wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 	{%f1}, %rd1, %rd2;
	wgmma.wait_group.sync.aligned 	0;
	st.global.u32 	[%rd1], %r1;
	ret;
}
.visible .entry two(
	.param .u64 two_param_0
)
{
	bar.sync 	0;
	ret;
}
"#;

#[test]
fn places_are_found_with_their_nearest_own_source() {
    let parts = PtxParts::of(PTX, "./kernels/src/");
    let places = parts.places("one", &ORDERING);
    let found: Vec<_> = places.iter().map(|place| (place.kernel, place.opcode(), place.source.as_str())).collect();
    let wanted = [
        ("one", "bar.sync", "first.rs:12"),
        // Locations outside the kernels' own sources are ignored.
        ("one", "bar.sync", "first.rs:12"),
        ("one", "cp.async.commit_group", "first.rs:0"),
        ("one", "mbarrier.try_wait.parity.shared::cta.b64", "first.rs:0"),
        ("one", "wgmma.wait_group.sync.aligned", "first.rs:0"),
    ];
    assert_eq!(found, wanted);
    assert_eq!((places[1].instruction, places[1].file()), ("bar.sync \t1, 128;", "first.rs"));
    assert_eq!(parts.places("two", &ORDERING).len(), 1);
}

#[test]
fn an_excerpt_leaves_out_exactly_one_place() {
    let parts = PtxParts::of(PTX, "./kernels/src/");
    let (kernels, all) = (["one"], parts.places("one", &ORDERING));
    let whole = parts.excerpt(kernels, None);
    assert!(whole.starts_with("\n.version 8.0") && whole.contains(".entry one(") && !whole.contains(".entry two("));
    for (at, place) in all.iter().enumerate() {
        let text = parts.excerpt(kernels, Some(place));
        let differ: Vec<_> = whole.lines().zip(text.lines()).filter(|(before, after)| before != after).collect();
        // A polling wait is replaced by a predicate that ends the loop at once.
        let instead = if at == 3 { "setp.eq.u32 %p2, 0, 0;" } else { "" };
        assert!(differ.len() == 1 && differ[0].0.contains(place.instruction) && differ[0].1 == instead);
        assert_eq!(text.lines().count(), whole.lines().count(), "lines keep their numbers");
    }
    let other = parts.excerpt(["one", "two"], Some(&parts.places("two", &ORDERING)[0]));
    assert!(other.starts_with(&whole) && other.matches("bar.sync").count() == 2);
}
