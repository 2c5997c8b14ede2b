package backfill

import java.nio.file.{Files, Path}
import java.io.{ObjectInputStream, ObjectOutputStream}
import java.util
import scala.collection.mutable.ArrayBuffer
import scala.util.Using

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.analysis.{NoSuchTableException, TableAlreadyExistsException}
import org.apache.spark.sql.connector.catalog._
import org.apache.spark.sql.connector.catalog.TableCapability._
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.write._
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** A catalog for one process at a time, each of whose tables is a file in the folder that the option `path` names.
  *
  * Its tables know MERGE, by Spark's own interfaces for operations on rows; none of the catalogs that Spark brings does.
  * An operation reads all rows of its table and writes all of them anew.
  */
class FolderCatalog extends TableCatalog with SupportsNamespaces {
  private var called = ""
  private var folder: Path = _

  override def initialize(name: String, options: CaseInsensitiveStringMap): Unit = {
    called = name
    folder = Files.createDirectories(Path.of(options.get("path")))
  }
  override def name: String = called

  private def file(ident: Identifier): Path = folder.resolve(ident.toString)

  override def loadTable(ident: Identifier): FolderTable = {
    if (!Files.exists(file(ident))) throw new NoSuchTableException(ident)
    new FolderTable(file(ident))
  }
  override def createTable(ident: Identifier, info: TableInfo): Table = {
    if (Files.exists(file(ident))) throw new TableAlreadyExistsException(ident)
    Content.write(file(ident), Content(info.schema, new util.HashMap(info.properties), Array.empty))
    loadTable(ident)
  }
  override def alterTable(ident: Identifier, changes: TableChange*): Table = {
    val content = loadTable(ident).content
    changes.foreach {
      case change: TableChange.SetProperty => content.properties.put(change.property, change.value)
      case change => throw new UnsupportedOperationException(change.toString)
    }
    Content.write(file(ident), content)
    loadTable(ident)
  }
  override def dropTable(ident: Identifier): Boolean = Files.deleteIfExists(file(ident))
  override def renameTable(from: Identifier, to: Identifier): Unit = throw new UnsupportedOperationException
  override def listTables(namespace: Array[String]): Array[Identifier] = Array.empty

  override def listNamespaces(): Array[Array[String]] = Array(Array("default"))
  override def listNamespaces(namespace: Array[String]): Array[Array[String]] = Array.empty
  override def namespaceExists(namespace: Array[String]): Boolean = true
  override def loadNamespaceMetadata(namespace: Array[String]): util.Map[String, String] = util.Map.of()
  override def createNamespace(namespace: Array[String], metadata: util.Map[String, String]): Unit = ()
  override def alterNamespace(namespace: Array[String], changes: NamespaceChange*): Unit = ()
  override def dropNamespace(namespace: Array[String], cascade: Boolean): Boolean = false
}

case class Content(schema: StructType, properties: util.HashMap[String, String], rows: Array[InternalRow])

object Content {
  def read(file: Path): Content =
    Using.resource(new ObjectInputStream(Files.newInputStream(file)) {
      // The classes of Spark and our own are not those of whoever calls.
      override def resolveClass(described: java.io.ObjectStreamClass): Class[_] =
        Class.forName(described.getName, false, classOf[Content].getClassLoader)
    })(_.readObject().asInstanceOf[Content])

  def write(file: Path, content: Content): Unit =
    Using.resource(new ObjectOutputStream(Files.newOutputStream(file)))(_.writeObject(content))
}

class FolderTable(file: Path) extends Table with SupportsRead with SupportsWrite with SupportsRowLevelOperations {
  def content: Content = Content.read(file)

  override def name: String = file.getFileName.toString
  override def schema: StructType = content.schema
  override def properties: util.Map[String, String] = content.properties
  override def capabilities: util.Set[TableCapability] = util.Set.of(BATCH_READ, BATCH_WRITE)

  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = () => new AllRows(content)
  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = writing(_.rows ++ _)
  override def newRowLevelOperationBuilder(info: RowLevelOperationInfo): RowLevelOperationBuilder = () =>
    new RowLevelOperation {
      override def command: RowLevelOperation.Command = info.command
      override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder =
        FolderTable.this.newScanBuilder(options)
      override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = writing((_, rows) => rows)
    }

  private def writing(together: (Content, Array[InternalRow]) => Array[InternalRow]): WriteBuilder =
    new WriteBuilder {
      override def build(): Write = new Write {
        override def toBatch: BatchWrite = new BatchWrite {
          override def createBatchWriterFactory(info: PhysicalWriteInfo): DataWriterFactory = new RowsWriters
          override def abort(messages: Array[WriterCommitMessage]): Unit = ()
          override def commit(messages: Array[WriterCommitMessage]): Unit = {
            val before = content
            val written = messages.flatMap { case Written(rows) => rows }
            Content.write(file, before.copy(rows = together(before, written)))
          }
        }
      }
    }
}

class AllRows(content: Content) extends Scan with Batch {
  override def readSchema: StructType = content.schema
  override def toBatch: Batch = this
  override def planInputPartitions: Array[InputPartition] = Array(Rows(content.rows))
  override def createReaderFactory: PartitionReaderFactory = new RowsReaders
}

case class Rows(rows: Array[InternalRow]) extends InputPartition

class RowsReaders extends PartitionReaderFactory {
  override def createReader(partition: InputPartition): PartitionReader[InternalRow] =
    new PartitionReader[InternalRow] {
      private val rows = partition.asInstanceOf[Rows].rows
      private var at = -1
      override def next(): Boolean = { at += 1; at < rows.length }
      override def get: InternalRow = rows(at)
      override def close(): Unit = ()
    }
}

case class Written(rows: Array[InternalRow]) extends WriterCommitMessage

class RowsWriters extends DataWriterFactory {
  override def createWriter(partition: Int, task: Long): DataWriter[InternalRow] = new DataWriter[InternalRow] {
    private val rows = new ArrayBuffer[InternalRow]
    override def write(row: InternalRow): Unit = rows += row.copy()
    override def commit(): WriterCommitMessage = Written(rows.toArray)
    override def abort(): Unit = ()
    override def close(): Unit = ()
  }
}
