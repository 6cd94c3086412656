//! The kernels' PTX, embedded by the build script for each kind of GPU: compressed, and as two images, since the paper's
//! kernels are loaded only where they are asked for.

use std::io::Read;

use flate2::read::ZlibDecoder;

/// PTX for one kind of GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// The GPU it is for, as compilers name it.
    pub arch: &'static str,
    engine: &'static [u8],
    paper: &'static [u8],
}

impl Image {
    /// The PTX of the kernels that the engine runs.
    pub fn engine(&self) -> String {
        text(self.engine)
    }

    /// The PTX of the paper's kernels.
    pub fn paper(&self) -> String {
        text(self.paper)
    }
}

/// The text that the build script compressed.
fn text(compressed: &[u8]) -> String {
    let mut text = String::new();
    match ZlibDecoder::new(compressed).read_to_string(&mut text) {
        Ok(_) => text,
        Err(error) => unreachable!("the build script has compressed text: {error}"),
    }
}

/// The version of the PTX language that a text is written in, and the first version of CUDA that knows it.
///
/// # Panics
/// If the text does not say: the build script's would not be PTX.
pub fn version(ptx: &str) -> (&str, (i32, i32)) {
    let isa = ptx.lines().find_map(|line| line.strip_prefix(".version ")).unwrap_or_default().trim();
    let number = |text: &str| text.parse::<i32>().ok();
    let Some((major, minor)) = isa.split_once('.').and_then(|(a, b)| number(a).zip(number(b))) else {
        panic!("the PTX names no version");
    };
    // PTX 6.3 came with CUDA 10.0, 7.0 with 11.0, and 8.0 with 12.0; each has gone along with CUDA's minor versions since.
    (isa, (major + 4, minor))
}

/// For Ampere and everything after it.
pub static SM_80: Image = Image {
    arch: "sm_80",
    engine: include_bytes!(concat!(env!("OUT_DIR"), "/engine.sm_80.ptx.zlib")),
    paper: include_bytes!(concat!(env!("OUT_DIR"), "/paper.sm_80.ptx.zlib")),
};

/// For Hopper alone: what an `a` target has is in no later GPU.
pub static SM_90A: Image = Image {
    arch: "sm_90a",
    engine: include_bytes!(concat!(env!("OUT_DIR"), "/engine.sm_90a.ptx.zlib")),
    paper: include_bytes!(concat!(env!("OUT_DIR"), "/paper.sm_90a.ptx.zlib")),
};

/// The images for a GPU of this compute capability, or none if it is too old to run the kernels.
pub fn for_capability(major: u32, minor: u32) -> Option<Image> {
    match (major, minor) {
        (9, 0) => Some(SM_90A),
        (8.., _) => Some(SM_80),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kernels::registry;

    use super::*;

    #[test]
    fn every_gpu_gets_code_that_it_can_run() {
        assert_eq!(for_capability(7, 5), None);
        assert_eq!(for_capability(8, 0), Some(SM_80));
        assert_eq!(for_capability(8, 9), Some(SM_80));
        assert_eq!(for_capability(9, 0), Some(SM_90A));
        assert_eq!(for_capability(10, 0), Some(SM_80), "sm_90a runs on sm_90 only");
    }

    #[test]
    fn images_say_what_cuda_they_need() {
        let versions = [SM_80.engine(), SM_80.paper(), SM_90A.engine(), SM_90A.paper()].map(|ptx| version(&ptx).1);
        assert_eq!(versions, [(11, 0), (11, 0), (12, 0), (12, 0)]);
        assert_eq!(version(&SM_80.engine()).0, "7.0");
    }

    #[test]
    fn each_image_has_its_kernels_and_no_others() {
        for image in [SM_80, SM_90A] {
            let (engine, paper) = (image.engine(), image.paper());
            for (ptx, kernels) in
                [(&engine, names(image, registry::engine())), (&paper, names(image, registry::paper()))]
            {
                assert!(ptx.contains(&format!("\n.target {}\n", image.arch)));
                let entries = ptx.lines().filter_map(|line| line.strip_prefix(".visible .entry ")?.split('(').next());
                assert_eq!(entries.collect::<BTreeSet<_>>(), kernels);
            }
        }
    }

    fn names(
        image: Image,
        kernels: impl Iterator<Item = &'static cuda_std::launch::Descriptor>,
    ) -> BTreeSet<&'static str> {
        kernels.filter(|kernel| kernel.is_for(image.arch)).map(|kernel| kernel.name).collect()
    }
}
