"""What leaves the house: a model as ONNX, and as a folder in the layout of the Hugging Face Hub (docs/export.md)."""
