"""Params: fields, the text of --set, the registry of models, plug-ins."""
