//! Sets the soname under which programs look for the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Keep the library loaded after `dlclose`, because it reports when the process exits.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
