"""The runtime shim's shell scripts: the launcher, which passes all calls but create and run on, and the hook.

Belongs here: the scripts' text. Does not belong here: writing it (install.py), create and run (runtime.py). A shell
starts in a millisecond where an interpreter takes eight, and an engine calls its runtime several times for each
container (start, state, kill, delete). Both use builtins alone. The launcher believes config.toml only where one plain
line names the runtimes; what is not plain goes to the interpreter. Its tables are those of ocicall.py.
"""

from nvinject.cli.discovery import DEFAULT_PATH
from nvinject.cli.ocicall import COMMANDS, GLOBAL_VALUES
from nvinject.cli.standby import HOOK_ANSWER, HOOK_INPUT
from nvinject.configfile import DEFAULT_CONFIG
from nvinject.core.policy import DEFAULT_RUNTIMES
from nvinject.render.oci import HOOK_SCRIPT

MARK = "# Written by `nvinject install`: the runtime shim."

_SCRIPT = """\
#!/bin/sh
@MARK@
# All calls but create and run become the low-level runtime, in this process. See docs/runtime.md.
set -f
launcher=@LAUNCHER@
[ -x "$launcher" ] || launcher=${0%/*}/nvinject

command='' skip='' version='' last=''
for word do
  if [ -n "$skip" ]; then skip=''; continue; fi
  if [ -n "$command" ]; then last=$word; continue; fi
  case $word in
    @VALUES@) skip=1 ;;
    --version|-version|--version=*|-version=*) version=1 ;;
    -*) ;;
    @COMMANDS@) command=$word ;;
  esac
done

# The names in one plain line `runtimes = ["runc", "crun"]`; `unclear` for whatever else has that word.
blank=' 	'
names=@NAMES@ table='' unclear=''
config=${NVIDIA_CTK_CONFIG_FILE_PATH:-}
[ -n "$config" ] || config=${XDG_CONFIG_HOME:+$XDG_CONFIG_HOME/nvidia-container-runtime/config.toml}
[ -n "$config" ] || config=@CONFIG@
if [ -f "$config" ] && [ -r "$config" ]; then
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in
      *runtimes*)
        line=${line#"${line%%[!$blank]*}"}
        case $table:$line in
          *:'#'*) ;;
          '[nvidia-container-runtime]':runtimes*)
            key=${line%%=*} text=${line#*=}
            key=${key#runtimes} text=${text#"${text%%[!$blank]*}"}
            after=${text#*]} text=${text%%]*}
            after=${after#"${after%%[!$blank]*}"}
            case $key:$text:$after in
              *[!$blank]*:*:* | *:*['#\\\\']*:* | *:*:[!'#']*) unclear=1 ;;
              *:'['*:*) names=${text#'['} ;;
              *) unclear=1 ;;
            esac ;;
          *) unclear=1 ;;
        esac ;;
      *'['*)
        line=${line#"${line%%[!$blank]*}"}
        case $line in '['*) table=${line%"${line##*[!$blank]}"} ;; esac ;;
    esac
  done <"$config"
fi

runtime='' directories=$PATH:@PATH@
IFS=,
for name in $names; do
  name=${name#"${name%%[!$blank]*}"} name=${name%"${name##*[!$blank]}"}
  case $name in
    '"'*'"') name=${name#'"'} name=${name%'"'} ;;
    "'"*"'") name=${name#"'"} name=${name%"'"} ;;
    '') continue ;;
    *) unclear=1 ;;
  esac
  case $name in
    *['"'"'"]*) unclear=1 ;;
    */*) if [ -f "$name" ] && [ -x "$name" ]; then runtime=$name; break; fi ;;
    *)
      IFS=:
      for directory in $directories; do
        candidate=$directory/$name
        case $directory in /*) ;; *) continue ;; esac
        if [ -f "$candidate" ] && [ -x "$candidate" ] && ! [ "$candidate" -ef "$0" ]; then
          runtime=$candidate
          break 2
        fi
      done ;;
  esac
done
unset IFS

if [ -n "$unclear" ] || [ -z "$runtime" ]; then
  exec "$launcher" runtime --as "${0##*/}" -- "$@"
fi
case $version$command in
  create|run|1*) exec "$launcher" runtime --as "${0##*/}" --low-level "$runtime" -- "$@" ;;
  delete)
    case $last in */*|.|..|'') exec "$runtime" "$@" ;; esac
    for base in /run/nvinject "${XDG_RUNTIME_DIR:-/run}/nvinject"; do
      case $base in /*) [ -d "$base/$last" ] || continue ;; *) continue ;; esac
      # What another user may have put there is not removed by its path; the interpreter looks closer.
      unsafe='' way=$base
      [ -O "$base" ] && [ -O "${base%/*}" ] || unsafe=1
      [ -h "$base" ] && unsafe=1
      while [ -O / ] && [ -n "$way" ]; do # root's, all the way: who owns a folder can exchange what is in it
        if [ -h "$way" ] || ! [ -O "$way" ]; then unsafe=1; fi
        way=${way%/*}
      done
      if [ -n "$unsafe" ]; then
        exec "$launcher" runtime --as "${0##*/}" --low-level "$runtime" -- "$@"
      fi
      "$runtime" "$@" || exit
      # Another engine's container of this id uses the folder as long as its runtime has a record of it.
      note=''
      [ -r "$base/$last/container.json" ] && IFS= read -r note <"$base/$last/container.json"
      state=${note##*'"state": "'} state=${state%'"}'}
      case $state in
        *'\\'*) exit 0 ;; # written in escapes of JSON: the next create looks
        /*) [ -e "$state" ] && exit 0 ;;
      esac
      PATH=$PATH:/usr/bin:/bin
      rm -rf -- "$base/$last"
      exit 0
    done ;;
esac
exec "$runtime" "$@"
"""


_HOOK = """\
#!/bin/sh
@MARK@
# The createContainer hook: lets the process that stands by (standby.py) do the work, or does it with an interpreter.
folder=$1 busy=''
if [ -p "$folder/call" ] && [ -p "$folder/answer" ] && read -r process rest </proc/self/stat; then
  # Opened for both first: to open for reading alone would wait for a writer, and the stand-by may have gone. Once the
  # first is closed, the only writer left is the stand-by, and its end is the end of the file.
  exec 3<>"$folder/answer"
  exec @ANSWER@<"$folder/answer" 3>&-
  exec @INPUT@<&0 # where it stays while `read` has another standard input
  echo "$process" 1<>"$folder/call"
  while read -r answer <&@ANSWER@; do
    case $answer in
      busy) busy=1 ;;
      *) exit "$answer" ;;
    esac
  done
  if [ -n "$busy" ]; then
    echo 'nvinject: the process that changes the container was ended; create the container anew' >&2
    exit 6
  fi
fi
exec "${0%@SUFFIX@}" create-container "$folder"
"""


def format_hook() -> str:
    """Return the script of the createContainer hook, which stands beside the interpreter launcher."""
    script = _HOOK.replace("@MARK@", MARK).replace("@SUFFIX@", HOOK_SCRIPT)
    return script.replace("@INPUT@", str(HOOK_INPUT)).replace("@ANSWER@", str(HOOK_ANSWER))


def format_launcher(launcher: str) -> str:
    """Return the script for an installed interpreter launcher (its absolute path)."""
    return (
        _SCRIPT.replace("@MARK@", MARK)
        .replace("@LAUNCHER@", quote(launcher))
        .replace("@VALUES@", "|".join(sorted(GLOBAL_VALUES)))
        .replace("@COMMANDS@", "|".join(sorted(COMMANDS)))
        .replace("@NAMES@", quote(",".join(f'"{name}"' for name in DEFAULT_RUNTIMES)))
        .replace("@CONFIG@", DEFAULT_CONFIG)
        .replace("@PATH@", ":".join(DEFAULT_PATH))
    )


def quote(text: str) -> str:
    """Return the text as one word of the shell."""
    return "'" + text.replace("'", "'\\''") + "'"
