module enginecore.dev/devcluster/pause

go 1.26
