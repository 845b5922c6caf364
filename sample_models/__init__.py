"""Small trained models, each in a folder with the script that trained it."""
