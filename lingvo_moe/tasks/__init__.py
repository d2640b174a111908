"""The translation task: loss, params, tags, languages, logdirs."""
