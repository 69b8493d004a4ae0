-- Which store this is; may be asked again. asked: {an id, for a store that has none}
--# include common.lua
--# include outbox.lua
--# include instance.lua
return instance(asked[1])
