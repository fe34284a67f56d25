//! Compiles `vipd/v1` without a `protoc` binary: protox is a protobuf compiler in Rust that yields the same
//! `FileDescriptorSet`.
use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=vipd");
    let mut compiler = protox::Compiler::new(["."])?;
    compiler.include_imports(true).include_source_info(true).open_files([
        "vipd/v1/service.proto",
        "vipd/v1/dataplane.proto",
        "vipd/v1/node.proto",
    ])?;
    let descriptor = compiler.encode_file_descriptor_set();

    // `compile_fds` does not write the descriptor itself; reflection needs it.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("vipd_descriptor.bin"), &descriptor)?;

    // Maps are ordered, so that one state is always the same bytes and the same JSON.
    pbjson_build::Builder::new().register_descriptors(&descriptor)?.btree_map(["."]).build(&[".vipd.v1"])?;
    tonic_prost_build::configure()
        .btree_map(".")
        .compile_well_known_types(true)
        .extern_path(".google.protobuf", "::pbjson_types")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
