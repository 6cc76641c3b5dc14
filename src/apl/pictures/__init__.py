"""Pictures from anywhere, brought into the forms that encoders know: drawings in grey, photographs in colour."""
