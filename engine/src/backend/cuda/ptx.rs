//! The kernels' PTX, embedded by the build script in compressed form. There are two images, because the paper's kernels
//! are loaded only on request. Each image contains a text for each kind of GPU.

use std::io::{BufRead, BufReader, ErrorKind};
use std::sync::OnceLock;

use lzma_rust2::LzmaReader;

static ENGINE: Packed = Packed::new(include_bytes!(concat!(env!("OUT_DIR"), "/engine.ptx.lzma")));
static PAPER: Packed = Packed::new(include_bytes!(concat!(env!("OUT_DIR"), "/paper.ptx.lzma")));

/// The compressed texts of an image. Decompressed texts are kept, because each of several GPUs loads the same one.
struct Packed {
    compressed: &'static [u8],
    texts: [OnceLock<String>; 2],
}

impl Packed {
    const fn new(compressed: &'static [u8]) -> Self {
        Packed { compressed, texts: [const { OnceLock::new() }; 2] }
    }

    /// Returns a text by its index. Later texts are not decompressed.
    fn text(&self, at: usize) -> &str {
        self.texts[at].get_or_init(|| {
            let reader = LzmaReader::new_mem_limit(self.compressed, u32::MAX, None).map(BufReader::new);
            let text = reader
                .and_then(|reader| reader.split(0).nth(at).unwrap_or_else(|| Err(ErrorKind::UnexpectedEof.into())));
            match text.map(String::from_utf8) {
                Ok(Ok(text)) => text,
                other => unreachable!("the build script compresses UTF-8 texts: {other:?}"),
            }
        })
    }
}

/// PTX for one kind of GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// The compilers' name of the target GPU.
    pub arch: &'static str,
    /// The index of its text in an image.
    at: usize,
}

impl Image {
    /// Returns the PTX of the engine's kernels.
    pub fn engine(&self) -> &'static str {
        ENGINE.text(self.at)
    }

    /// Returns the PTX of the paper's kernels.
    pub fn paper(&self) -> &'static str {
        PAPER.text(self.at)
    }
}

/// Returns the version of the PTX language of a text, and the first version of CUDA that supports it.
///
/// # Panics
/// If the text contains no version. The build script's texts always do.
pub fn version(ptx: &str) -> (&str, (i32, i32)) {
    let isa = ptx.lines().find_map(|line| line.strip_prefix(".version ")).unwrap_or_default().trim();
    let number = |text: &str| text.parse::<i32>().ok();
    let Some((major, minor)) = isa.split_once('.').and_then(|(a, b)| number(a).zip(number(b))) else {
        panic!("the PTX has no version");
    };
    // PTX 6.3 came with CUDA 10.0, 7.0 with 11.0, and 8.0 with 12.0. Minor versions have increased together since.
    (isa, (major + 4, minor))
}

/// For Ampere and all later GPUs.
pub static SM_80: Image = Image { arch: "sm_80", at: 0 };

/// For Hopper only: later GPUs do not support the features of an `a` target.
pub static SM_90A: Image = Image { arch: "sm_90a", at: 1 };

/// Returns the images for a GPU of this compute capability, or `None` if it is too old for the kernels.
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
    fn images_need_the_right_cuda_version() {
        let versions = [SM_80.engine(), SM_80.paper(), SM_90A.engine(), SM_90A.paper()].map(|ptx| version(ptx).1);
        assert_eq!(versions, [(11, 0), (11, 0), (12, 0), (12, 0)]);
        assert_eq!(version(SM_80.engine()).0, "7.0");
    }

    #[test]
    fn each_image_has_its_kernels_and_no_others() {
        for image in [SM_80, SM_90A] {
            let (engine, paper) = (image.engine(), image.paper());
            for (ptx, kernels) in [(engine, names(image, registry::engine())), (paper, names(image, registry::paper()))]
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
