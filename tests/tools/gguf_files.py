"""What all writers of model files share."""

from __future__ import annotations

from gguf import GGUFReader, GGUFWriter


def copy_tokenizer(writer: GGUFWriter, source: GGUFReader) -> int:
    """Gives a model another one's tokenizer. Returns the number of its tokens."""
    for name, field in source.fields.items():
        if not name.startswith("tokenizer."):
            continue
        value = field.contents()
        if isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, field.types[0])
    return len(source.fields["tokenizer.ggml.tokens"].contents())


def finish(writer: GGUFWriter) -> None:
    """Writes everything down."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
